"""A real agent process whose endpoint is a console, disabled, garbage, or silent."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailspan.recorder import begin_request, process
from tests.support.otlp_endpoints import GrpcEndpoint, HttpEndpoint

MS = 1_000_000


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@contextmanager
def garbage() -> Iterator[int]:
    """Yield a port that answers anything with bytes of no protocol."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        try:
            while True:
                client, _ = listener.accept()
                with client:
                    client.settimeout(0.5)
                    client.recv(10)
                    client.sendall(b"\x00\xffSSH-2.0-what\r\n" * 20)
        except OSError:
            return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def run_agent(directory: Path, linger_s: float = 1.0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run an agent over what is recorded, to its end."""
    begin = process.now_ns()
    request = begin_request("POST /v1/chat/completions", begin)
    request.stage("receive", begin, begin + MS)
    request.end(begin + 2 * MS)
    process.close()
    command = [sys.executable, "-m", "tailspan.agent", str(directory), "--linger", str(linger_s)]
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_an_agent_facing_garbage_says_so_once_and_ends(worker_dir: Path, protocol: str) -> None:
    """Spans and metrics fail at an endpoint of no known protocol: one warning for each, exit code 1, nothing left."""
    with garbage() as port:
        done = run_agent(
            worker_dir, 2.5, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}",
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol, OTEL_EXPORTER_OTLP_TIMEOUT="1", OTEL_METRICS_EXPORTER="otlp",
            OTEL_METRIC_EXPORT_INTERVAL="200",
        )  # fmt: skip
    lines = done.stderr.splitlines()
    assert sum("exporting spans to" in line for line in lines) == 1
    assert sum("exporting metrics to" in line for line in lines) == 1
    assert not [line for line in lines if not line.startswith("tailspan agent: ")]
    assert done.returncode == 1
    assert not worker_dir.exists()


def test_an_agent_facing_silence_ends_all_the_same(worker_dir: Path) -> None:
    """Neither spans nor metrics hold the agent longer than its patience and a few timeouts."""
    with HttpEndpoint(answer=(200, b"late", 60.0)) as endpoint:
        begun = time.monotonic()
        done = run_agent(
            worker_dir, 1.0, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint.endpoint, OTEL_EXPORTER_OTLP_TIMEOUT="1",
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf", OTEL_METRICS_EXPORTER="otlp",
        )  # fmt: skip
        assert time.monotonic() - begun < 15
        assert endpoint.calls >= 2
    assert done.returncode == 1
    assert sum("exporting spans to" in line for line in done.stderr.splitlines()) == 1
    assert not worker_dir.exists()


def test_disabled_means_that_nothing_is_sent(worker_dir: Path) -> None:
    """OTEL_SDK_DISABLED=true wins over the exporters that are named; the agent still drains and ends."""
    with GrpcEndpoint() as endpoint:
        done = run_agent(
            worker_dir, OTEL_SDK_DISABLED="true", OTEL_EXPORTER_OTLP_ENDPOINT=endpoint.endpoint,
            OTEL_METRICS_EXPORTER="otlp",
        )  # fmt: skip
        assert endpoint.calls == 0
    assert (done.returncode, done.stderr, worker_dir.exists()) == (0, "", False)


def test_the_console_shows_spans_and_metrics(worker_dir: Path) -> None:
    """For trying out: both go to standard output as JSON, and no endpoint is needed."""
    done = run_agent(worker_dir, OTEL_TRACES_EXPORTER="console", OTEL_METRICS_EXPORTER="console")
    decoder, text, found = json.JSONDecoder(), done.stdout.strip(), []
    while text:
        item, end = decoder.raw_decode(text)
        found.append(item)
        text = text[end:].strip()
    assert [item["name"] for item in found if "context" in item] == ["POST /v1/chat/completions", "receive", "respond"]
    names = [
        metric["name"]
        for item in found
        for resource in item.get("resource_metrics", ())
        for scope in resource["scope_metrics"]
        for metric in scope["metrics"]
    ]
    assert "gen_ai.server.request.duration" in names
    assert "tailspan.stage.duration" in names
    assert (done.returncode, done.stderr) == (0, "")
