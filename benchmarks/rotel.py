"""rotel, the OpenTelemetry collector in Rust, as a peer: installed from PyPI into a cache, started with its defaults.

Errors: `UserError` if it cannot be installed; a benchmark without its peer would compare with nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tailspan.errors import UserError

VERSION = "0.0.1a15"

# What rotel's clickhouse-ddl-tool creates for traces: the schema of the OpenTelemetry Collector's ClickHouse exporter.
OTEL_TRACES = """
create table if not exists otel.otel_traces (
    Timestamp DateTime64(9) codec(Delta(8), ZSTD(1)),
    TraceId String codec(ZSTD(1)),
    SpanId String codec(ZSTD(1)),
    ParentSpanId String codec(ZSTD(1)),
    TraceState String codec(ZSTD(1)),
    SpanName LowCardinality(String) codec(ZSTD(1)),
    SpanKind LowCardinality(String) codec(ZSTD(1)),
    ServiceName LowCardinality(String) codec(ZSTD(1)),
    ResourceAttributes Map(LowCardinality(String), String) codec(ZSTD(1)),
    ScopeName String codec(ZSTD(1)),
    ScopeVersion String codec(ZSTD(1)),
    SpanAttributes Map(LowCardinality(String), String) codec(ZSTD(1)),
    Duration UInt64 codec(ZSTD(1)),
    StatusCode LowCardinality(String) codec(ZSTD(1)),
    StatusMessage String codec(ZSTD(1)),
    Events Nested (Timestamp DateTime64(9), Name LowCardinality(String),
                   Attributes Map(LowCardinality(String), String)) codec(ZSTD(1)),
    Links Nested (TraceId String, SpanId String, TraceState String,
                  Attributes Map(LowCardinality(String), String)) codec(ZSTD(1)),
    index idx_trace_id TraceId type bloom_filter(0.001) granularity 1,
    index idx_res_attr_key mapKeys(ResourceAttributes) type bloom_filter(0.01) granularity 1,
    index idx_res_attr_value mapValues(ResourceAttributes) type bloom_filter(0.01) granularity 1,
    index idx_span_attr_key mapKeys(SpanAttributes) type bloom_filter(0.01) granularity 1,
    index idx_span_attr_value mapValues(SpanAttributes) type bloom_filter(0.01) granularity 1,
    index idx_duration Duration type minmax granularity 1
) engine = MergeTree partition by toDate(Timestamp) order by (ServiceName, SpanName, toDateTime(Timestamp))
"""


def program() -> str:
    """Return the path of rotel, installing it on the first use.

    Raises:
        UserError: that failed.
    """
    if found := shutil.which("rotel-agent"):
        return found
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailspan" / f"rotel-{VERSION}"
    if not (found_here := sorted(cache.glob("lib/python*/site-packages/rotel/rotel-agent"))):
        try:
            subprocess.run([sys.executable, "-m", "venv", str(cache)], check=True, capture_output=True, text=True)
            pip = [str(cache / "bin" / "pip"), "install", "--quiet", f"rotel=={VERSION}"]
            subprocess.run(pip, check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            raise UserError(
                f"rotel {VERSION} cannot be installed into {cache}: {str(error.stderr).strip().splitlines()[-1:]}",
                "Connect to a package index, or put a `rotel-agent` on PATH",
            ) from error
        found_here = sorted(cache.glob("lib/python*/site-packages/rotel/rotel-agent"))
    return str(found_here[0])


def start(clickhouse: str, port: int, spans_a_batch: int | None = None) -> subprocess.Popen[bytes]:
    """Start rotel between an OTLP/gRPC port and ClickHouse; `spans_a_batch` instead of its default."""
    command = [program(), "start", "--otlp-grpc-endpoint", f"127.0.0.1:{port}", "--otlp-http-endpoint", "127.0.0.1:0"]
    command += ["--exporter", "clickhouse", "--clickhouse-exporter-endpoint", clickhouse]
    command += ["--clickhouse-exporter-database", "otel"]
    if spans_a_batch is not None:
        command += ["--batch-max-size", str(spans_a_batch)]
    log = tempfile.TemporaryFile()  # noqa: SIM115 (the child's)
    return subprocess.Popen(command, stdout=log, stderr=log)
