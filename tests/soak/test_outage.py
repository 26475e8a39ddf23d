"""The endpoint goes away in the middle of the load and comes back: nothing is lost, nothing is sent twice."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.soak.worker import Worker
from tests.support.otlp_sink import OtlpSink

WORKERS = 4


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_an_endpoint_that_is_down_for_a_minute(worker: Worker) -> None:
    """Four workers serve for 70 s; the endpoint is there for a few seconds, away for 60 s, and back."""
    with OtlpSink() as before:
        port = before.port
        logs = [worker.folder / f"log-{number}" for number in range(WORKERS)]
        children = [start(worker, port, log) for log in logs]
        before.wait_for(100)
        time.sleep(3)
    time.sleep(60)
    with OtlpSink(port) as after:
        for child in children:
            assert child.wait(120) == 0, worker.stderr()
        worker.wait_clean(90)
        spans = before.spans + after.spans
    expected = Counter(line.split()[0] for log in logs for line in log.read_text().splitlines())
    roots = Counter(span.span_id.hex() for span in spans if span.kind == Span.SPAN_KIND_SERVER)
    assert expected - roots == Counter(), "requests that never arrived"
    # A batch whose acknowledgement was cut off by the endpoint's end is sent again, with the same ids.
    doubled = {span.span_id for span in before.spans} & {span.span_id for span in after.spans}
    assert (roots - expected).keys() <= {identifier.hex() for identifier in doubled}
    assert "dropped" not in worker.stderr()


def start(worker: Worker, port: int, log: Path) -> subprocess.Popen[str]:
    """Start one worker."""
    return worker.start(
        "serve_for.py", "70", str(log), linger_s=60, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}"
    )
