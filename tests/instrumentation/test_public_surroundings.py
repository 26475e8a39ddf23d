"""Hand-written workers: without a recorder, when something fails, behind a server, and up to the endpoint."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import StreamingResponse
from starlette.routing import Route

import tailspan
from tailspan import asgi, guard
from tailspan import attributes as attr
from tailspan.recorder import process
from tests.engines.recorded import Recorded
from tests.instrumentation.handmade import work
from tests.instrumentation.test_agent import start_agent
from tests.support.otlp_sink import OtlpSink, attributes_of


def test_without_a_recorder_nothing_happens() -> None:
    """Every call is a no-op that costs little and keeps the caller's trace."""
    assert not process.is_started()
    engine = tailspan.Engine("mine", "m")
    header = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
    with tailspan.request(traceparent=header, model="m") as request, tailspan.stage("prefill"):
        assert not request
        assert request.traceparent == header
        request.set("app.user", 1)
        request.tokens(input=1, output=2)
        request.fail("x")
        engine.queued(request)
        with tailspan.step(engine, [request]) as step:
            request.token()
            request.output()
            step.finish(request)
        request.finish()
    assert step.number == 0
    assert not tailspan.current_request()
    assert tailspan.current_request().traceparent == ""
    begin = time.process_time_ns()
    for _ in range(2000):
        with tailspan.request(), tailspan.stage("prefill"):
            pass
    assert (time.process_time_ns() - begin) / 2000 < 20_000


def test_an_error_of_ours_never_reaches_the_worker(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In production a value that cannot be recorded is logged once and counted; the request goes on."""
    monkeypatch.setenv("TAILSPAN_STRICT", "0")
    before = guard.failures.get("api", 0)
    monkeypatch.delitem(guard.failures, "api", raising=False)
    with caplog.at_level(logging.WARNING, logger="tailspan"), tailspan.request() as request:
        request.set("app.list", [1])  # type: ignore[arg-type]
        request.set("tailspan.role", "step")
        request.set("app.big", 1 << 70)
        with tailspan.step(tailspan.Engine("mine"), requests=lambda: 1 // 0):  # type: ignore[arg-type, return-value]
            pass
        request.set("app.fine", "yes")
    assert guard.failures["api"] == 4
    assert before == 0
    assert len(caplog.records) == 1
    one = recorded.one()
    assert one["app.fine"] == "yes"
    assert attr.ROLE not in one.state.attributes


def test_a_recorder_that_stops_inside_a_request_disturbs_nobody(worker_dir: Path) -> None:
    """uninstrument() between begin and end: the block is left as if nothing had been recorded."""
    with tailspan.request() as request, tailspan.stage("prefill"):
        process.close()
        request.set("app.user", 1)
        request.token()
        request.finish()


def test_a_killed_worker_was_in_the_stage_that_it_began(tmp_path: Path, sink: OtlpSink) -> None:
    """After kill -9 inside `prefill` the lost request ends in that stage."""
    script = (
        "import os, signal, time, tailspan\n"
        "from tailspan.recorder import process\n"
        "from tailspan.settings import Settings\n"
        "process.start(Settings.from_environment())\n"
        "with tailspan.request():\n"
        "    with tailspan.stage('queue'):\n"
        "        time.sleep(0.002)\n"
        "    with tailspan.stage('prefill'):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script], env=os.environ | {"TAILSPAN_WORKER_DIR": str(tmp_path)}, check=False)
    assert start_agent(tmp_path, sink.endpoint).wait(20) == 0
    (root,) = [span for span in sink.spans if span.kind == Span.SPAN_KIND_SERVER]
    assert attributes_of(root.attributes)[attr.OUTCOME] == "lost"
    assert [span.name for span in sink.spans if span.parent_span_id == root.span_id] == ["queue", "prefill"]


async def test_behind_an_http_server_a_stream_is_one_request(recorded: Recorded) -> None:
    """The ASGI hook's request has the stages of the decorated generator and ends TTFT at the first body chunk."""

    @tailspan.request(model="mine")
    async def words() -> AsyncIterator[str]:
        with tailspan.stage("prefill"):
            await asyncio.sleep(0.002)
        for _ in range(3):
            with tailspan.stage("decode"):
                await asyncio.sleep(0.002)
            yield "word "

    async def endpoint(request: HttpRequest) -> StreamingResponse:
        await request.body()
        return StreamingResponse(words())

    patcher = asgi.patcher()
    patcher.apply()
    try:
        app = Starlette(routes=[Route("/generate", endpoint, methods=["POST"])])
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.post("/generate", content=b"{}")
    finally:
        patcher.undo()
    assert answer.text == "word word word "
    one = recorded.one()
    assert one.state.name == "POST /generate"
    assert one[attr.GEN_AI_MODEL] == "mine"
    assert one.state.first_chunk_ns is not None
    assert one.stage_names[-3:] == ["prefill", "decode", "respond"]
    assert one.stage_names[0] == "receive"


def test_a_hand_written_worker_becomes_spans(worker_dir: Path, sink: OtlpSink) -> None:
    """Through a real agent to a real endpoint: a server span with its stages as children, steps with links."""
    agent = start_agent(worker_dir, sink.endpoint)
    engine = tailspan.Engine("mine", "m")
    with tailspan.request("by_stages", model="m") as request:
        for name in ("queue", "prefill", "decode"):
            with request.stage(name):
                work()
        request.tokens(input=3, output=4)
    with tailspan.request("by_steps") as request:
        engine.queued(request, 3)
        for _ in range(3):
            with tailspan.step(engine, [request], kv_usage=0.25):
                work()
                request.token()
        request.finish()
    process.close()
    assert agent.wait(20) == 0
    roots = {span.name: span for span in sink.spans if span.kind == Span.SPAN_KIND_SERVER}
    assert set(roots) == {"by_stages", "by_steps"}
    for root in roots.values():
        children = {span.name: span for span in sink.spans if span.parent_span_id == root.span_id}
        assert {"queue", "prefill", "decode"} <= set(children)
        walls = sum(span.end_time_unix_nano - span.start_time_unix_nano for span in children.values())
        rest = attributes_of(root.attributes)[attr.UNATTRIBUTED_NS]
        assert walls + rest == root.end_time_unix_nano - root.start_time_unix_nano
    by_steps = [span for span in sink.spans if span.parent_span_id == roots["by_steps"].span_id]
    (decode,) = [attributes_of(span.attributes) for span in by_steps if span.name == "decode"]
    assert decode[attr.ENGINE_ID] == engine.id
    assert sum(int(pair.split(":")[1]) for pair in decode[attr.ITL_HISTOGRAM].split()) == 2
    steps = sorted((s for s in sink.spans if s.name == "step"), key=lambda span: span.start_time_unix_nano)
    assert [[attributes_of(link.attributes)[attr.STEP_LINK] for link in span.links] for span in steps] == [
        ["join"],
        [],
        ["finish"],
    ]
    assert attributes_of(steps[0].attributes)[attr.STEP_KV_USAGE] == 0.25
