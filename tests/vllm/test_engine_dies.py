"""vLLM's own tracing beside ours, and an engine core that is killed with requests in it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tailspan import attributes as attr
from tests.support.otlp_sink import OtlpSink, attributes_of
from tests.vllm.running import VllmServer, serve

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BODY = {"messages": [{"role": "user", "content": "Tell me about rivers."}], "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def traced_twice(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VllmServer, OtlpSink]]:
    """A server for two requests at once that also traces itself, to an endpoint of its own."""
    with OtlpSink() as own:
        arguments = ("--max-num-seqs=2", f"--otlp-traces-endpoint={own.endpoint}")
        insecure = {"OTEL_EXPORTER_OTLP_TRACES_INSECURE": "true"}
        with serve(model_folder, tmp_path_factory.mktemp("twice"), *arguments, **insecure) as running:
            yield running, own


def _stream(server: VllmServer, tokens: int) -> None:
    with httpx.Client(timeout=120) as client:
        body = BODY | {"model": server.model, "max_tokens": tokens, "stream": True}
        with client.stream("POST", f"{server.url}/v1/chat/completions", json=body) as response:
            try:
                for _ in response.iter_lines():
                    pass
            except httpx.TransportError:
                return


def _engine_core(server: VllmServer) -> int:
    """Return the process of the engine core, which vLLM names so."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            status = (process / "status").read_text()
            title = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"VLLM::EngineCore") and f"\nPPid:\t{server.pid}\n" in status:
            return int(process.name)
    raise AssertionError(f"no engine core below process {server.pid}")


def test_vllm_traces_itself_at_the_same_time(traced_twice: tuple[VllmServer, OtlpSink]) -> None:
    """One trace: vLLM's `llm_request` is a child of our request span, and marked as counted already."""
    server, own = traced_twice
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    answer = server.post("/v1/chat/completions", BODY | {"model": server.model, "max_tokens": 6}, **headers)
    assert answer.status_code == 200, answer.text
    deadline = time.monotonic() + 60
    while True:
        theirs = [span for span in own.spans if span.trace_id.hex() == TRACE]
        ours = [span for span in server.sink.spans if span.trace_id.hex() == TRACE]
        roots = [span for span in ours if span.parent_span_id.hex() == PARENT]
        if theirs and roots:
            break
        assert time.monotonic() < deadline, (len(theirs), len(roots), server.log)
        time.sleep(0.2)
    (root,) = roots
    (request,) = [span for span in theirs if span.name == "llm_request"]
    assert request.parent_span_id == root.span_id
    assert "tailspan=1" in request.trace_state
    assert sum(span.kind == Span.SPAN_KIND_SERVER for span in ours) == 1
    assert {"tokenize", "queue", "prefill", "decode"} <= {span.name for span in ours}
    prefill = next(span for span in ours if span.name == "prefill")
    theirs_s = float(attributes_of(request.attributes)["gen_ai.latency.time_in_model_prefill"])
    assert theirs_s == pytest.approx((prefill.end_time_unix_nano - prefill.start_time_unix_nano) / 1e9, abs=0.02)


def test_a_killed_engine_core_tells_who_was_in_which_stage(traced_twice: tuple[VllmServer, OtlpSink]) -> None:
    """Two requests decode, three wait: the crash event links all five, each with its stage; they end as errors."""
    server, _ = traced_twice
    before = len(server.wait_requests(1))
    clients = [threading.Thread(target=_stream, args=(server, 400)) for _ in range(5)]
    for client in clients:
        client.start()
    time.sleep(4)
    os.kill(_engine_core(server), signal.SIGKILL)
    for client in clients:
        client.join(60)
    deadline = time.monotonic() + 60
    while not (crashes := [span for span in server.sink.spans if span.name == attr.EVENT_CRASH]):
        assert time.monotonic() < deadline, server.log
        time.sleep(0.2)
    (crash,) = crashes
    stages = sorted(attributes_of(link.attributes)[attr.STAGE] for link in crash.links)
    assert stages == ["decode", "decode", "queue", "queue", "queue"]
    known = attributes_of(crash.attributes)
    assert known[attr.WORKER_OPEN_REQUESTS] == 5
    assert known[attr.STEP_REQUESTS] == 2
    held = server.wait_requests(before + 5)[-5:]
    assert {link.span_id for link in crash.links} == {span.span_id for span in held}
    assert all(attributes_of(span.attributes)[attr.OUTCOME] == "error" for span in held)
    assert "2 in decode" in server.log or "3 in queue" in server.log
