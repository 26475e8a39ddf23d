"""The flight recorder: crashes, stalls and drops are told, and nothing is told twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tailspan import attributes as attr
from tailspan.agent.flight import Drops
from tailspan.recorder import begin_request, process
from tailspan.recorder.engine import Engine
from tailspan.recorder.reader import RingReader
from tailspan.recorder.ring import RingWriter
from tailspan.settings import WORKER_DIR, Settings
from tests.support.otlp_sink import OtlpSink, attributes_of

MS = 1_000_000


def start_agent(directory: Path, endpoint: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start an agent that ends when what it reads is over."""
    env = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint} | environment
    return subprocess.Popen([sys.executable, "-m", "tailspan.agent", str(directory), "--linger", "20"], env=env)


def named(spans: list[Span], name: str) -> list[Span]:
    """Return the spans of a name."""
    return [span for span in spans if span.name == name]


def role(span: Span) -> str:
    """Return the role of a span."""
    return str(attributes_of(span.attributes).get(attr.ROLE))


WORKER = """
import os, signal, sys, time
from tailspan.recorder import Engine, begin_request, now_ns, process
from tailspan.settings import Settings
process.start(Settings.from_environment())
engine = Engine("transformers", "m")
t = now_ns()
done = begin_request("generate", t)
engine.queued(done.key, t); engine.join(done.key, 1, t)
engine.step(1, t, t + 1000, requests=2, prefill_tokens=9, decode_tokens=1)
engine.first_token(done.key, 1, t + 1000); engine.finish(done.key, 1, t + 1000, 1); done.end(t + 2000)
decoding = begin_request("generate", t)
engine.queued(decoding.key, t); engine.join(decoding.key, 1, t); engine.first_token(decoding.key, 1, t + 1000)
queued = begin_request("generate", t)
engine.queued(queued.key, t)
os.kill(os.getpid(), signal.SIGNUM)
"""


@pytest.mark.parametrize("number", ["SIGKILL", "SIGSEGV"])
def test_a_crash_names_the_step_and_every_open_request(tmp_path: Path, sink: OtlpSink, number: str) -> None:
    """Open requests come out up to their stage with status ERROR; the event links them and names step and batch."""
    env = os.environ | {WORKER_DIR: str(tmp_path)}
    subprocess.run([sys.executable, "-c", WORKER.replace("SIGNUM", number)], env=env, check=False, capture_output=True)
    assert start_agent(tmp_path, sink.endpoint).wait(20) == 0
    roots = [span for span in sink.spans if span.kind == Span.SPAN_KIND_SERVER]
    lost = [span for span in roots if attributes_of(span.attributes)[attr.OUTCOME] == "lost"]
    assert (len(roots), len(lost)) == (3, 2)
    assert {span.status.code for span in lost} == {Status.STATUS_CODE_ERROR}
    last = {}
    for root in lost:
        children = [span for span in sink.spans if span.parent_span_id == root.span_id]
        last[root.span_id] = max(children, key=lambda span: span.end_time_unix_nano)
    assert sorted(span.name for span in last.values()) == ["decode", "queue"]
    assert sorted(attributes_of(span.attributes).get(attr.GEN_AI_OUTPUT_TOKENS, 0) for span in lost) == [0, 1]
    assert {span.status.code for span in last.values()} == {Status.STATUS_CODE_ERROR}
    (event,) = named(sink.spans, attr.EVENT_CRASH)
    attributes = attributes_of(event.attributes)
    assert attributes[attr.ROLE] == attr.ROLE_EVENT
    assert attributes[attr.WORKER_OPEN_REQUESTS] == 2
    assert (attributes[attr.STEP_NUMBER], attributes[attr.STEP_REQUESTS]) == (1, 2)
    assert {link.span_id for link in event.links} == {span.span_id for span in lost}


def test_a_process_that_leaves_without_good_bye_and_without_requests_is_no_crash(
    tmp_path: Path, sink: OtlpSink
) -> None:
    """os._exit after the last request is an orderly end."""
    script = WORKER.split("decoding =")[0] + "os._exit(0)\n"
    subprocess.run([sys.executable, "-c", script], env=os.environ | {WORKER_DIR: str(tmp_path)}, check=True)
    assert start_agent(tmp_path, sink.endpoint).wait(20) == 0
    assert named(sink.spans, attr.EVENT_CRASH) == []
    assert len([span for span in sink.spans if span.kind == Span.SPAN_KIND_SERVER]) == 1


def test_a_stall_is_told_once_with_snapshots_and_the_request_still_ends_once(worker_dir: Path, sink: OtlpSink) -> None:
    """One event, one snapshot a request; when the engine goes on, the real trace comes, once."""
    agent = start_agent(worker_dir, sink.endpoint, TAILSPAN_STALL_TIMEOUT="1")
    engine = Engine("transformers", "m")
    now = process.now_ns()
    request = begin_request("generate", now)
    engine.queued(request.key, now)
    engine.join(request.key, 1, now)
    time.sleep(4)
    (event,) = named(sink.spans, attr.EVENT_STALL)
    assert attributes_of(event.attributes)[attr.STALLED_NS] >= 1000 * MS
    assert [int.from_bytes(link.span_id, "big") for link in event.links] == [request.key]
    snapshots = [span for span in sink.spans if role(span) == attr.ROLE_SNAPSHOT]
    assert sorted(span.name for span in snapshots) == ["generate", "prefill"]
    assert {span.trace_id for span in snapshots} == {request.trace_id.to_bytes(16, "big")}
    end = process.now_ns()
    engine.step(1, now, end, requests=1, prefill_tokens=3, decode_tokens=0)
    engine.first_token(request.key, 1, end)
    engine.finish(request.key, 1, end, 1)
    request.end(end)
    process.close()
    assert agent.wait(20) == 0
    real = [span for span in sink.spans if role(span) == attr.ROLE_REQUEST]
    assert [int.from_bytes(span.span_id, "big") for span in real] == [request.key]
    assert real[0].status.code == Status.STATUS_CODE_UNSET
    assert len(named(sink.spans, attr.EVENT_STALL)) == 1


def test_an_idle_engine_does_not_stall(worker_dir: Path, sink: OtlpSink) -> None:
    """Without requests no step is expected."""
    agent = start_agent(worker_dir, sink.endpoint, TAILSPAN_STALL_TIMEOUT="1")
    engine = Engine("transformers", "m")
    now = process.now_ns()
    request = begin_request("generate", now)
    engine.queued(request.key, now)
    engine.join(request.key, 1, now)
    engine.step(1, now, now + MS, requests=1, prefill_tokens=3, decode_tokens=0)
    engine.finish(request.key, 1, now + MS, 1)
    request.end(now + MS)
    time.sleep(3)
    process.close()
    assert agent.wait(20) == 0
    assert named(sink.spans, attr.EVENT_STALL) == []


def test_a_nearly_full_ring_leaves_out_whole_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last quarter belongs to requests that have begun: they end whole, new ones leave no record at all."""
    monkeypatch.setenv(WORKER_DIR, str(tmp_path))
    monkeypatch.setenv("TAILSPAN_RING_RECORDS", "64")
    process.start(Settings.from_environment())
    try:
        first = begin_request("generate", 1)
        later = [begin_request("generate", 2) for _ in range(100)]
        engine = Engine("transformers", "m")
        for request in [*later, first]:
            if request.recorded:
                continue
            request.attribute("a", 1)
            engine.queued(request.key, 2)
            request.end(3)
        first.end(4)
        (path,) = tmp_path.glob("*.ring")
        reader = RingReader(path)
        assert reader.dropped == 0
        assert reader.dropped_requests == sum(not request.recorded for request in later) >= 50
        assert first.recorded
        assert not process.unrecorded
    finally:
        process.close()


def test_what_was_dropped_reaches_the_user(worker_dir: Path, sink: OtlpSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent tells of dropped records in an event with the number."""
    writer = RingWriter(worker_dir / "1-9.ring", 64, 9)
    for number in range(100):
        writer.record(13, 0, 0, number)
    begin_request("generate", process.now_ns()).end(process.now_ns())
    agent = start_agent(worker_dir, sink.endpoint)
    sink.wait_for(2)
    writer.mark_closed()
    process.close()
    assert agent.wait(20) == 0
    told = [attributes_of(span.attributes)[attr.DROPPED_RECORDS] for span in named(sink.spans, attr.EVENT_DROPS)]
    assert sum(told) == 36


def test_drops_count_from_the_last_time() -> None:
    """Only what is new is told, and nothing is nothing."""
    assert Drops(5, 2, 1).since(Drops(3, 2, 0)) == Drops(2, 0, 1)
    assert not Drops()


def test_a_forked_child_does_not_keep_its_parents_ring_alive(tmp_path: Path) -> None:
    """The lock that says `alive` belongs to the process, not to whoever inherited the file."""
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from tailspan.recorder.ring import RingWriter\n"
        f"ring = RingWriter(Path({str(tmp_path / 'a.ring')!r}), 64, 0)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os.close(1)\n"
        "    time.sleep(60)\n"
        "print(child, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        child = int(parent.stdout.readline())
        reader = RingReader(tmp_path / "a.ring")
        try:
            assert reader.alive
            parent.kill()
            parent.wait()
            assert not reader.alive
        finally:
            os.kill(child, signal.SIGKILL)
