"""A whole collector process: how its parts work together, and that they stop in time."""

from __future__ import annotations

import base64
import json
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import clickhouse_connect
import grpc
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError
from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

from tests.collector.conftest import CollectorFactory
from tests.support.collector import RunningCollector, exporter, run_tailspan, wait_until
from tests.support.destinations import GrpcDestination, HttpDestination
from tests.support.otlp_messages import request_with_stages

TOKEN = "0123456789abcdef-one"


def get(url: str, **headers: str) -> tuple[int, str]:
    """GET a page; return status and text."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_doctor_finds_the_collector_of_a_folder(start_collector: CollectorFactory) -> None:
    """`tailspan doctor --collector` counts what was taken, stored and resent, and says when nothing runs any more."""
    collector = start_collector("--batch-seconds", "0.05")
    requests = [request_with_stages(1) for _ in range(3)]
    collector.export(*requests, requests[0])
    collector.wait_rows(9)
    found = run_tailspan("doctor", "--collector", TAILSPAN_DATA=str(collector.data))
    assert found.returncode == 0, found.stdout
    assert "3 requests taken, 3 stored, 1 resent" in found.stdout
    collector.stop()
    assert not (collector.data / "endpoints.json").exists()
    gone = run_tailspan("doctor", "--collector", collector.admin)
    assert gone.returncode == 2


def test_metrics_and_logs_of_the_sdk_are_stored(start_collector: CollectorFactory) -> None:
    """The SDK's three signals go to one endpoint; metrics and logs are in the Collector's tables."""
    collector = start_collector("--batch-seconds", "0.05")
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{collector.otlp_http_endpoint}/v1/metrics"))
    metrics = MeterProvider([reader])
    metrics.get_meter("m").create_counter("requests", unit="1").add(7, {"route": "/v1"})
    metrics.shutdown()
    logs = LoggerProvider()
    exporting = OTLPLogExporter(f"{collector.otlp_http_endpoint}/v1/logs")
    logs.add_log_record_processor(SimpleLogRecordProcessor(exporting))
    now = time.time_ns()
    logs.get_logger("of a service").emit(
        LogRecord(timestamp=now, observed_timestamp=now, body="hello", severity_text="WARN")
    )
    logs.shutdown()
    collector.wait_rows(1, "tailspan.otel_metrics_sum")
    collector.wait_rows(1, "tailspan.otel_logs")
    sums = collector.query("select MetricName, Value, Attributes['route'] from tailspan.otel_metrics_sum")
    assert sums == [("requests", 7.0, "/v1")]
    assert collector.query("select Body, SeverityText from tailspan.otel_logs") == [("hello", "WARN")]


def test_destinations_get_the_same_bytes(start_collector: CollectorFactory, tmp_path: Path) -> None:
    """`--forward` and `[[forward]]` destinations get each request as it came; one that is down delays nobody."""
    requests = [request_with_stages(1) for _ in range(20)]
    with GrpcDestination() as first, HttpDestination() as second:
        config = tmp_path / "tailspan.toml"
        config.write_text(
            f'[[forward]]\nname = "second"\nendpoint = "{second.url}"\n'
            '[[forward]]\nname = "down"\nendpoint = "http://127.0.0.1:9"\n'
        )
        collector = start_collector(
            "--config", str(config), "--forward", first.url.replace("http://", "grpc://"), "--batch-seconds", "0.05"
        )
        collector.export(*requests)
        assert sorted(first.inbox.wait(20)) == sorted(second.inbox.wait(20)) == sorted(requests)
        assert collector.wait_rows(60) == 60
        metrics = get(f"{collector.admin}/metrics")[1]
        assert 'tailspan_collector_forwarded_requests_total{destination="second",signal="traces"} 20.0' in metrics
        begin = time.monotonic()
        assert collector.stop() == 0
        assert time.monotonic() - begin < 20


def test_a_sampled_destination_gets_the_traces_it_wants(start_collector: CollectorFactory, tmp_path: Path) -> None:
    """A destination with `sample` gets whole traces that are slow, also where the SQL port is guarded."""
    with GrpcDestination() as apm:
        config = tmp_path / "tailspan.toml"
        config.write_text(
            f'[[forward]]\nname = "apm"\nendpoint = "{apm.url}"\nprotocol = "grpc"\n'
            'sample = { slower_than = "3ms", settle = "1s" }\n'
        )
        tokens = tmp_path / "tokens"
        tokens.write_text(f"{TOKEN}\n")
        collector = start_collector("--config", str(config), "--tokens-file", str(tokens), "--batch-seconds", "0.05")
        slow, fast = request_with_stages(2, stages=("queue", "prefill", "decode", "respond")), request_with_stages(3)
        with grpc.insecure_channel(f"127.0.0.1:{collector.otlp_port}") as channel:
            for request in (slow, fast):
                channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")(
                    request, timeout=10, metadata=[("authorization", f"Bearer {TOKEN}")]
                )
        taken = apm.inbox.wait(1, 30)
        names = [name for name in (b"prefill", b"respond") if any(name in body for body in taken)]
        assert names == [b"prefill", b"respond"]
        time.sleep(2)
        spans = [
            span
            for body in apm.inbox.taken
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        assert len(spans) == 10
        assert len({span.span_id for span in spans}) == 10


@pytest.fixture
def guarded(start_collector: CollectorFactory, tmp_path: Path) -> Iterator[RunningCollector]:
    """A collector with one token."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"# the agents\n{TOKEN}\n")
    return start_collector("--tokens-file", str(tokens), "--batch-seconds", "0.05")  # type: ignore[return-value]


def test_a_tokens_file_guards_every_port_but_health(guarded: RunningCollector) -> None:
    """Without a token no signal is taken and no SQL answered; with one, in any of the usual ways, both are."""
    with grpc.insecure_channel(f"127.0.0.1:{guarded.otlp_port}") as channel:
        with pytest.raises(grpc.RpcError) as refused:
            exporter(channel)(request_with_stages(1), timeout=10)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]
    query = f"{guarded.url}/?query=select+1"
    basic = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()
    assert get(query)[0] == 401
    assert get(query, Authorization="Bearer wrong-wrong-wrong-wrong")[0] == 401
    assert get(query, Authorization="Basic !!")[0] == 401
    for headers in (
        {"Authorization": f"Bearer {TOKEN}"},
        {"Authorization": f"Basic {basic}"},
        {"X-ClickHouse-Key": TOKEN},
    ):
        assert get(query, **headers) == (200, "1\n")
    assert get(f"{guarded.url}/ping") == (200, "Ok.\n")
    assert get(f"{guarded.admin}/readyz")[0] == 200
    with pytest.raises(DatabaseError, match="516"):
        clickhouse_connect.get_client(dsn=guarded.url)
    address = guarded.url.replace("http://", f"http://reader:{TOKEN}@")
    shown = run_tailspan("query", "data_range", "--url", address, "--format", "json")
    assert shown.returncode == 0, shown.stderr
    refused_query = run_tailspan("query", "data_range", "--url", guarded.url)
    assert refused_query.returncode == 2
    assert "token" in refused_query.stderr


def test_it_says_that_it_is_stopping(start_collector: CollectorFactory) -> None:
    """While a stop waits for requests under way, `/readyz` answers 503 and the liveness probe still 200."""
    collector = start_collector("--stop-seconds", "20")
    assert get(f"{collector.admin}/readyz")[0] == 200
    assert collector.process is not None
    slow = urllib.request.urlopen(f"{collector.admin}/healthz", timeout=5)
    slow.close()
    # An OTLP/HTTP request whose body does not come keeps the receiver in its grace.
    with socket.create_connection(("127.0.0.1", collector.ports["otlp_http_port"])) as open_request:
        open_request.sendall(
            b"POST /v1/traces HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-protobuf\r\n"
            b"Content-Length: 9\r\n\r\nabc"
        )
        time.sleep(0.3)
        collector.process.terminate()
        answer = wait_until(lambda: get(f"{collector.admin}/readyz"), lambda found: found[0] == 503, 5)
        assert answer[0] == 503
        assert "the collector is shutting down" in json.loads(answer[1])["problems"][0]
        assert get(f"{collector.admin}/healthz")[0] == 200
    assert collector.process.wait(25) == 0


def test_spans_of_a_thousand_days_hold_nobody_up(start_collector: CollectorFactory) -> None:
    """A request whose spans lie on more than 100 days becomes a reject; one with a few wrong dates is stored."""
    collector = start_collector("--batch-seconds", "0.05")

    def dated(days: int) -> bytes:
        message = ExportTraceServiceRequest()
        scope = message.resource_spans.add().scope_spans.add()
        for day in range(days):
            at = 86_400 * 10**9 * (18_000 + day)
            scope.spans.add(
                trace_id=os.urandom(16), span_id=os.urandom(8), name="x", start_time_unix_nano=at, end_time_unix_nano=at
            )
        return message.SerializeToString()

    begin = time.monotonic()
    collector.export(dated(1000), dated(5), request_with_stages(1))
    assert collector.wait_rows(8) == 8
    assert collector.wait_rows(1, "tailspan.rejects") == 1
    assert time.monotonic() - begin < 15
    assert "Too many partitions" in collector.query("select reason from tailspan.rejects")[0][0]


def test_log_lines_can_be_json(start_collector: CollectorFactory) -> None:
    """With `--log-format json` every log line is one JSON object, without the payload that it is about."""
    collector = start_collector("--log-format", "json", "--batch-seconds", "0.05")
    collector.export(b"\x0a\x07\x12\x05\x12\x03\x0a\x64x", request_with_stages(1))
    collector.wait_rows(1, "tailspan.rejects")
    lines = [json.loads(line) for line in collector.output.splitlines() if line.startswith("{")]
    assert any("tailspan.rejects" in line["message"] for line in lines)
