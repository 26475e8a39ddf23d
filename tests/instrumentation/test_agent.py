"""From the recorder through a real agent process to a real OTLP endpoint."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tailspan import attributes as attr
from tailspan.recorder import begin_request, process
from tailspan.recorder.engine import Engine
from tailspan.recorder.request import Request
from tests.support.otlp_sink import OtlpSink, attributes_of

MS = 1_000_000


def start_agent(directory: Path, endpoint: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start an agent that ends when this recorder says good-bye."""
    env = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint} | environment
    command = [sys.executable, "-m", "tailspan.agent", str(directory), "--linger", "20"]
    return subprocess.Popen(command, env=env)


def one_request(engine: Engine, traceparent: str | None = None, *, at_ns: int | None = None) -> Request:
    """Record a request of 100 ms with every stage and three tokens."""
    t = process.now_ns() - 100 * MS if at_ns is None else at_ns
    request = begin_request("POST /v1/chat/completions", t, traceparent)
    request.attribute(attr.GEN_AI_MODEL, "smol")
    request.text(attr.GEN_AI_RESPONSE_ID, "req-1")
    request.stage("receive", t, t + 2 * MS)
    request.stage("tokenize", t + 2 * MS, t + 5 * MS)
    engine.queued(request.key, t + 6 * MS, prompt_tokens=17)
    steps = [engine.next_step() for _ in range(3)]
    engine.join(request.key, steps[0], t + 20 * MS)
    for number, begin in zip(steps, (20, 50, 70), strict=True):
        engine.step(number, t + begin * MS, t + (begin + 20) * MS, requests=1, prefill_tokens=0, decode_tokens=1)
    engine.first_token(request.key, steps[0], t + 40 * MS)
    request.first_chunk(t + 41 * MS)
    engine.finish(request.key, steps[2], t + 90 * MS, output_tokens=3)
    request.text_ready(t + 91 * MS, MS)
    request.end(t + 100 * MS, http_status=200)
    return request


def by_parent(spans: list[Span], parent: bytes) -> dict[str, Span]:
    """Return the children of a span by name."""
    return {span.name: span for span in spans if span.parent_span_id == parent}


def test_a_request_becomes_a_server_span_with_one_child_per_stage(worker_dir: Path, sink: OtlpSink) -> None:
    """The caller's context is the parent; times, tokens, TTFT and ITL are those recorded."""
    agent = start_agent(worker_dir, sink.endpoint, OTEL_SERVICE_NAME="svc")
    request = one_request(Engine("transformers", "smol"), "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01")
    process.close()
    assert agent.wait(20) == 0
    spans = sink.spans
    (root,) = [span for span in spans if span.kind == Span.SPAN_KIND_SERVER]
    assert root.trace_id.hex() == "ab" * 16
    assert root.parent_span_id.hex() == "cd" * 8
    assert int.from_bytes(root.span_id, "big") == request.key
    attributes = attributes_of(root.attributes)
    assert attributes[attr.TTFT_NS] == 41 * MS
    assert attributes[attr.UNATTRIBUTED_NS] == 0
    assert attributes[attr.GEN_AI_OUTPUT_TOKENS] == 3
    assert attributes[attr.GEN_AI_INPUT_TOKENS] == 17
    assert attributes[attr.GEN_AI_RESPONSE_ID] == "req-1"
    assert attributes[attr.HTTP_STATUS] == 200
    children = by_parent(spans, root.span_id)
    walls = {name: (span.end_time_unix_nano - span.start_time_unix_nano) // MS for name, span in children.items()}
    assert walls == {
        "receive": 2,
        "tokenize": 3,
        "dispatch": 1,
        "queue": 14,
        "prefill": 20,
        "decode": 50,
        "detokenize": 1,
        "respond": 9,
    }
    assert sum(walls.values()) == 100
    decode = attributes_of(children["decode"].attributes)
    assert sum(int(pair.split(":")[1]) for pair in decode[attr.ITL_HISTOGRAM].split()) == 2
    assert (decode[attr.STEP_FIRST], decode[attr.STEP_LAST]) == (2, 3)
    assert sink.resource[attr.SERVICE_NAME] == "svc"
    assert abs(root.end_time_unix_nano - time.time_ns()) < 60e9


def test_steps_are_traces_of_their_own_with_links_to_who_joins_and_leaves(worker_dir: Path, sink: OtlpSink) -> None:
    """The first step links the request that joined, the last the one that finished, the middle one nobody."""
    agent = start_agent(worker_dir, sink.endpoint)
    request = one_request(Engine("transformers", "smol"))
    process.close()
    assert agent.wait(20) == 0
    steps = sorted((s for s in sink.spans if s.name == "step"), key=lambda s: s.start_time_unix_nano)
    events = [[attributes_of(link.attributes)[attr.STEP_LINK] for link in span.links] for span in steps]
    assert events == [["join"], [], ["finish"]]
    assert int.from_bytes(steps[0].links[0].span_id, "big") == request.key
    assert len({span.trace_id for span in sink.spans}) == 4
    idle = [attributes_of(span.attributes).get(attr.STEP_IDLE_NS) for span in steps]
    assert idle == [None, 10 * MS, 0]


def test_every_request_of_many_threads_arrives_once(worker_dir: Path, sink: OtlpSink) -> None:
    """8 threads, 150 requests each: every request has exactly one root and eight stages, no more."""
    agent = start_agent(worker_dir, sink.endpoint)
    keys: list[int] = []

    def work() -> None:
        engine = Engine("transformers", "smol")
        for _ in range(150):
            keys.append(one_request(engine).key)
            time.sleep(0.001)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    process.close()
    assert agent.wait(30) == 0
    roots = Counter(int.from_bytes(s.span_id, "big") for s in sink.spans if s.kind == Span.SPAN_KIND_SERVER)
    assert roots == Counter(keys)
    parents = Counter(int.from_bytes(s.parent_span_id, "big") for s in sink.spans if s.parent_span_id)
    assert parents == Counter(dict.fromkeys(keys, 8))
    assert sum(span.name == "step" for span in sink.spans) == 3 * len(keys)


def test_an_endpoint_that_is_down_at_first_gets_everything_later(worker_dir: Path) -> None:
    """Spans wait in the agent until the endpoint is there."""
    with OtlpSink() as probe:
        port = probe.port
    agent = start_agent(worker_dir, f"http://127.0.0.1:{port}", OTEL_EXPORTER_OTLP_TIMEOUT="1")
    one_request(Engine("transformers", "smol"))
    time.sleep(2.5)
    with OtlpSink(port) as sink:
        process.close()
        assert agent.wait(25) == 0
        assert sum(span.kind == Span.SPAN_KIND_SERVER for span in sink.spans) == 1


@pytest.mark.parametrize(
    ("outcome", "error", "http", "code"),
    [
        ("ok", "", 200, Status.STATUS_CODE_UNSET),
        ("ok", "422", 422, Status.STATUS_CODE_UNSET),
        ("error", "RuntimeError", 500, Status.STATUS_CODE_ERROR),
        ("client_disconnect", "client_disconnect", 200, Status.STATUS_CODE_ERROR),
    ],
)
def test_the_outcome_decides_the_status(
    worker_dir: Path, sink: OtlpSink, outcome: str, error: str, http: int, code: Status.StatusCode
) -> None:
    """A server error or disconnect is ERROR; a bad request leaves a server span unset, as the HTTP conventions say."""
    agent = start_agent(worker_dir, sink.endpoint)
    begin = process.now_ns()
    request = begin_request("POST /v1/chat/completions", begin)
    request.stage("receive", begin, begin + MS)
    request.end(begin + 2 * MS, outcome, error, http)
    process.close()
    assert agent.wait(20) == 0
    (root,) = [span for span in sink.spans if span.kind == Span.SPAN_KIND_SERVER]
    attributes = attributes_of(root.attributes)
    assert root.status.code == code
    assert attributes[attr.OUTCOME] == outcome
    assert attributes.get(attr.ERROR_TYPE, "") == error


def test_a_caller_that_does_not_sample_gets_no_spans(worker_dir: Path, sink: OtlpSink) -> None:
    """The W3C sampled flag is honoured."""
    agent = start_agent(worker_dir, sink.endpoint)
    engine = Engine("transformers", "smol")
    one_request(engine, "00-" + "ab" * 16 + "-" + "cd" * 8 + "-00")
    kept = one_request(engine, "00-" + "ef" * 16 + "-" + "cd" * 8 + "-01")
    process.close()
    assert agent.wait(20) == 0
    roots = [span for span in sink.spans if span.kind == Span.SPAN_KIND_SERVER]
    assert [int.from_bytes(span.span_id, "big") for span in roots] == [kept.key]


def test_a_killed_worker_still_tells_what_it_was_doing(tmp_path: Path, sink: OtlpSink) -> None:
    """After kill -9 the open request is exported up to its stage, as lost, with an error status."""
    script = (
        "import os, signal, tailspan.recorder as r\n"
        "from tailspan.recorder import process\n"
        "from tailspan.settings import Settings\n"
        "process.start(Settings.from_environment())\n"
        "request = r.begin_request('generate', r.now_ns())\n"
        "engine = r.Engine('transformers', 'm')\n"
        "engine.queued(request.key, r.now_ns())\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script], env=os.environ | {"TAILSPAN_WORKER_DIR": str(tmp_path)}, check=False)
    assert start_agent(tmp_path, sink.endpoint).wait(20) == 0
    (root,) = [span for span in sink.spans if span.kind == Span.SPAN_KIND_SERVER]
    assert root.status.code == Status.STATUS_CODE_ERROR
    assert attributes_of(root.attributes)[attr.OUTCOME] == "lost"
    assert list(by_parent(sink.spans, root.span_id)) == ["queue"]


def test_the_agent_removes_the_worker_folder_when_all_is_delivered(worker_dir: Path, sink: OtlpSink) -> None:
    """Nothing is left in shared memory."""
    agent = start_agent(worker_dir, sink.endpoint)
    one_request(Engine("transformers", "smol"))
    process.close()
    assert agent.wait(20) == 0
    assert not worker_dir.exists()


def test_a_second_agent_for_the_same_worker_leaves_at_once(worker_dir: Path, sink: OtlpSink) -> None:
    """One agent a worker: records are never read twice."""
    first = start_agent(worker_dir, sink.endpoint)
    one_request(Engine("transformers", "smol"))
    sink.wait_for(12)
    assert start_agent(worker_dir, sink.endpoint).wait(20) == 0
    assert first.poll() is None
    process.close()
    assert first.wait(20) == 0
    assert sum(span.kind == Span.SPAN_KIND_SERVER for span in sink.spans) == 1


def test_the_first_request_of_a_new_ring_is_whole_however_short(worker_dir: Path, sink: OtlpSink) -> None:
    """What another thread or process wrote into a ring that did not exist a moment ago belongs to the request."""
    agent = start_agent(worker_dir, sink.endpoint)
    over, rounds = threading.Event(), 12
    engine = Engine("vllm", "smol")

    def compute(key: int, done: threading.Event) -> None:
        number, now = engine.next_step(), process.now_ns()
        engine.queued(key, now)
        engine.join(key, number, now, samples_token=True)
        engine.step(number, now, process.now_ns(), requests=1, prefill_tokens=1, decode_tokens=0)
        engine.finish(key, number, process.now_ns(), output_tokens=1)
        done.set()
        over.wait()  # or the next thread would get this one's ring

    begin_request("warm-up", process.now_ns()).end(process.now_ns())
    time.sleep(1.0)
    for _ in range(rounds):
        request, done = begin_request("POST /v1/completions", process.now_ns()), threading.Event()
        threading.Thread(target=compute, args=(request.key, done)).start()
        assert done.wait(5)
        request.end(process.now_ns(), http_status=200)
        time.sleep(0.13)
    over.set()
    process.close()
    assert agent.wait(20) == 0
    roots = [span for span in sink.spans if span.name == "POST /v1/completions"]
    assert [attributes_of(span.attributes).get(attr.GEN_AI_OUTPUT_TOKENS) for span in roots] == [1] * rounds
