"""Hand-written workers: what their calls record, read back through real rings, the joiner and the partition."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Generator, Iterator
from contextvars import Context
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import StreamingResponse
from starlette.routing import Route

import tailspan
from tailspan import asgi, guard
from tailspan import attributes as attr
from tailspan.errors import UserError
from tailspan.recorder import begin_request, now_ns, process
from tailspan.recorder import current_request as recorded_request
from tests.engines.recorded import Recorded, Traced
from tests.instrumentation.test_agent import start_agent
from tests.support.otlp_sink import OtlpSink, attributes_of

MS = 1_000_000


@pytest.fixture
def recorded(worker_dir: Path) -> Recorded:
    """What a started recorder wrote."""
    return Recorded(worker_dir)


def without_gaps(one: Traced) -> bool:
    """Whether each stage begins where the previous one ended, up to the end of the request."""
    ends = [stage.end_ns for stage in one.stages]
    return [stage.begin_ns for stage in one.stages[1:]] == ends[:-1] and ends[-1] == one.end_ns


def work(ms: float = 2) -> None:
    """Take some time."""
    time.sleep(ms / 1000)


def test_stages_alone_partition_a_request(recorded: Recorded) -> None:
    """Each stage has the time of its block, the pause between two is unattributed, the sum is the request."""
    with tailspan.request(model="m", request_id="r-1", attributes={"app.user": 7}) as request:
        with tailspan.stage("tokenize"):
            work()
        work(4)
        with tailspan.stage("prefill"):
            work(6)
        request.token()
        request.first_output()
        with tailspan.stage("decode"):
            work(8)
            request.token(2)
        request.tokens(input=5)
    one = recorded.one()
    walls = {stage.stage: (stage.end_ns - stage.begin_ns) / MS for stage in one.stages}
    assert list(walls) == ["tokenize", "prefill", "decode"]
    assert walls["tokenize"] >= 2
    assert walls["prefill"] >= 6
    assert walls["decode"] >= 8
    assert one.gap_ns >= 4 * MS
    assert sum(stage.end_ns - stage.begin_ns for stage in one.stages) + one.gap_ns == one.end_ns - one.begin_ns
    assert (one.state.name, one.state.outcome) == ("generate", "ok")
    assert (one[attr.GEN_AI_MODEL], one[attr.GEN_AI_RESPONSE_ID], one["app.user"]) == ("m", "r-1", 7)
    assert (one[attr.GEN_AI_INPUT_TOKENS], one[attr.GEN_AI_OUTPUT_TOKENS]) == (5, 3)
    assert one.state.first_token_ns is not None
    assert one.state.first_chunk_ns is not None
    assert one.state.first_token_ns < one.state.first_chunk_ns


def test_a_nested_stage_is_cut_out_and_decode_keeps_its_text(recorded: Recorded) -> None:
    """The inner stage has the time; text between two parts of decode is busy time of `detokenize`."""
    with tailspan.request():
        with tailspan.stage("prefill"):
            work()
            with tailspan.stage("tokenize"):
                work(3)
            work()
        for _ in range(3):
            with tailspan.stage("decode"):
                work()
            with tailspan.stage("detokenize"):
                work()
    one = recorded.one()
    assert one.stage_names == ["prefill", "tokenize", "prefill", "decode", "detokenize"]
    decode, detokenize = one.stages[-2:]
    assert decode.end_ns - decode.begin_ns >= 10 * MS
    assert decode.busy_ns is not None
    assert decode.busy_ns < decode.end_ns - decode.begin_ns - 3 * MS
    assert detokenize.busy_ns is not None
    assert detokenize.busy_ns >= 6 * MS
    assert detokenize.begin_ns >= decode.end_ns
    assert detokenize.end_ns - detokenize.begin_ns <= detokenize.busy_ns - 4 * MS


def test_waiting_is_not_work(recorded: Recorded) -> None:
    """A queue measured by hand has wall time and no busy time."""
    with tailspan.request(), tailspan.stage("queue"):
        work()
    (queue,) = recorded.one().stages
    assert queue.busy_ns == 0
    assert queue.end_ns - queue.begin_ns >= 2 * MS


@pytest.mark.parametrize(
    ("error", "outcome", "error_type"),
    [
        (ValueError("no"), "error", "ValueError"),
        (asyncio.CancelledError(), "cancelled", ""),
        (KeyboardInterrupt(), "cancelled", ""),
        (GeneratorExit(), "cancelled", ""),
    ],
)
def test_an_exception_passes_untouched_and_names_the_outcome(
    recorded: Recorded, error: BaseException, outcome: str, error_type: str
) -> None:
    """The caller gets the very exception; the request ends with what it means, in the stage that it left."""

    @tailspan.request()
    def fails() -> None:
        with tailspan.stage("prefill"):
            work()
            raise error

    with pytest.raises(type(error)) as caught:
        fails()
    assert caught.value is error
    one = recorded.one()
    assert (one.state.outcome, one.state.error_type) == (outcome, error_type)
    assert one.stage_names == ["prefill"]
    assert recorded_request.get() is None


def test_a_failure_that_raises_nothing_can_be_told(recorded: Recorded) -> None:
    """`fail` ends the request as an error of the given class."""
    with tailspan.request() as request:
        request.fail("out_of_memory")
    assert (recorded.one().state.outcome, recorded.one().state.error_type) == ("error", "out_of_memory")


def test_the_callers_trace_is_continued(recorded: Recorded) -> None:
    """`traceparent` in, `traceparent` out: same trace, the request as parent."""
    with tailspan.request(traceparent="00-" + "ab" * 16 + "-" + "cd" * 8 + "-01") as request:
        handed_on = request.traceparent
    one = recorded.one()
    assert handed_on == f"00-{'ab' * 16}-{one.state.key:016x}-01"
    assert one.state.parent_id == int("cd" * 8, 16)


def test_a_request_inside_a_request_is_the_same_one(recorded: Recorded) -> None:
    """Nesting gives the same handle and one request; another trace gives another request."""
    with tailspan.request("outer") as outer:
        with tailspan.request("inner", model="m") as inner:
            assert inner is outer
            assert tailspan.current_request() is outer
        with tailspan.request("other", traceparent="00-" + "ab" * 16 + "-" + "cd" * 8 + "-01") as other:
            assert other is not outer
    first, second = recorded.wait(2)
    assert (first.state.name, second.state.name) == ("outer", "other")
    assert first[attr.GEN_AI_MODEL] == "m"
    assert first.end_ns >= second.end_ns


def test_a_request_that_a_hook_began_is_joined_but_not_ended(recorded: Recorded) -> None:
    """Under the HTTP hook the block adds to its request; the hook ends it and measures the first chunk."""
    theirs = begin_request("POST /generate", now_ns())
    token = recorded_request.set(theirs)
    with tailspan.request() as request:
        assert request.traceparent == theirs.traceparent
        request.output()
        with tailspan.stage("prefill"):
            work()
    assert theirs.has_output
    assert not theirs.sent_first_chunk
    assert not theirs.ended
    recorded_request.reset(token)
    theirs.end(now_ns())
    assert recorded.one().stage_names == ["prefill"]


def test_functions_of_every_kind_keep_their_kind_and_results(recorded: Recorded) -> None:
    """Decorated plain, coroutine, generator and async generator functions behave as before, each call a request."""

    @tailspan.request("plain")
    def plain(x: int) -> int:
        """Say so."""
        return x + 1

    @tailspan.request("coroutine")
    async def coroutine(x: int) -> int:
        await asyncio.sleep(0)
        return x + 1

    @tailspan.request("generator")
    def generator(n: int) -> Iterator[int]:
        yield from range(n)

    @tailspan.request("async_generator")
    async def async_generator(n: int) -> AsyncIterator[int]:
        for number in range(n):
            yield number

    async def collect() -> list[int]:
        return [number async for number in async_generator(3)]

    assert plain.__doc__ == "Say so."
    assert inspect.iscoroutinefunction(coroutine)
    assert inspect.isgeneratorfunction(generator)
    assert inspect.isasyncgenfunction(async_generator)
    assert plain(1) == asyncio.run(coroutine(1)) == 2
    assert list(generator(3)) == asyncio.run(collect()) == [0, 1, 2]
    done = recorded.wait(4)
    assert [one.state.name for one in done] == ["plain", "coroutine", "generator", "async_generator"]
    assert [one.state.first_chunk_ns is not None for one in done] == [False, False, True, True]
    assert {one.state.outcome for one in done} == {"ok"}


def test_a_generator_keeps_its_protocol_and_is_current_only_inside(recorded: Recorded) -> None:
    """send, throw and the return value reach both sides; the consumer's context never has the request."""
    seen: list[object] = []

    @tailspan.request()
    def echo() -> Generator[object, object, str]:
        got: object = None
        while got != "stop":
            try:
                got = yield got
            except KeyError as error:
                got = type(error)
            seen.append(bool(tailspan.current_request()))
        return "returned"

    stream = echo()
    assert next(stream) is None
    assert not tailspan.current_request()
    assert stream.send("a") == "a"
    assert stream.throw(KeyError()) is KeyError
    with pytest.raises(StopIteration) as stop:
        stream.send("stop")
    assert stop.value.value == "returned"
    assert seen == [True, True, True]
    assert recorded.one().state.outcome == "ok"


async def test_a_stream_that_nobody_reads_to_its_end_is_cancelled(recorded: Recorded) -> None:
    """Closing a generator or async generator ends its request as cancelled, and its `finally` runs."""
    cleaned: list[str] = []

    @tailspan.request("sync")
    def words() -> Iterator[str]:
        try:
            while True:
                yield "word"
        finally:
            cleaned.append("sync")

    @tailspan.request("async")
    async def async_words() -> AsyncIterator[str]:
        try:
            while True:
                yield "word"
        finally:
            await asyncio.sleep(0)
            cleaned.append("async")

    stream = words()
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    async_stream = async_words()
    await anext(async_stream)
    await async_stream.aclose()  # type: ignore[attr-defined]
    assert cleaned == ["sync", "async"]
    assert [one.state.outcome for one in recorded.wait(2)] == ["cancelled", "cancelled"]


def test_a_stage_around_a_generator_counts_its_own_code_as_work(recorded: Recorded) -> None:
    """Wall time lasts until the generator is exhausted, busy time leaves the consumer out."""

    @tailspan.stage("decode")
    def tokens() -> Iterator[int]:
        for number in range(3):
            work()
            yield number

    with tailspan.request():
        for _ in tokens():
            work(4)
    (decode,) = recorded.one().stages
    assert decode.end_ns - decode.begin_ns >= 18 * MS
    assert decode.busy_ns is not None
    assert 6 * MS <= decode.busy_ns <= decode.end_ns - decode.begin_ns - 12 * MS


async def test_concurrent_tasks_do_not_mix(recorded: Recorded) -> None:
    """50 tasks at once: every request has its own stages and attributes."""

    async def one(number: int) -> None:
        async with tailspan.request(attributes={"app.number": number}):
            async with tailspan.stage("prefill"):
                await asyncio.sleep(0.001 * (number % 5))
            tailspan.current_request().tokens(input=number)

    await asyncio.gather(*(one(number) for number in range(50)))
    done = recorded.wait(50)
    assert sorted(request["app.number"] for request in done) == list(range(50))  # type: ignore[type-var]
    assert all(request["app.number"] == request[attr.GEN_AI_INPUT_TOKENS] for request in done)
    assert all(request.stage_names == ["prefill"] for request in done)


def test_a_stage_in_another_thread_names_its_request(recorded: Recorded) -> None:
    """`handle.stage` and `request=` reach the request where the context variable does not."""
    with tailspan.request() as request:

        def run() -> None:
            with tailspan.stage("queue"):
                work()
            with request.stage("prefill"):
                work()
            with tailspan.stage("decode", request=request):
                work()

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert recorded.one().stage_names == ["prefill", "decode"]


def test_steps_give_membership_and_token_times(recorded: Recorded) -> None:
    """Two requests in one batch: joins, first tokens, finishes and gaps follow from who is in each step."""
    engine = tailspan.Engine("mine", "m")
    with tailspan.request("a") as a, tailspan.request("b", traceparent="00-" + "b" * 32 + "-" + "c" * 16 + "-01") as b:
        engine.queued(a, prompt_tokens=9)
        engine.queued(b, prompt_tokens=4)
        work()
        for number, batch in enumerate([[a], [a, b], [a, b], [b]], 1):
            with tailspan.step(engine, batch, prefill_tokens=9 if number == 1 else 0, waiting=2 - len(batch)) as step:
                work()
                for request in batch:
                    request.token()
                if number == 3:
                    a.finish()
            assert step.number == number
        b.finish()
    first, second = sorted(recorded.wait(2), key=lambda one: one.state.name)
    assert first.stage_names == second.stage_names == ["queue", "prefill", "decode", "respond"]
    assert without_gaps(first)
    assert without_gaps(second)
    assert [len(one.token_times) for one in (first, second)] == [3, 3]
    assert (first.state.memberships[0].join_step, first.state.finish_step) == (1, 3)
    assert (second.state.memberships[0].join_step, second.state.finish_step) == (2, 4)
    assert [one[attr.GEN_AI_INPUT_TOKENS] for one in (first, second)] == [9, 4]
    assert [one[attr.GEN_AI_OUTPUT_TOKENS] for one in (first, second)] == [3, 3]
    assert [(step.requests, step.decode_tokens, step.waiting) for step in recorded.steps] == [
        (1, 0, 1),
        (2, 1, 0),
        (2, 2, 0),
        (1, 1, 1),
    ]
    assert recorded.steps[0].prefill_tokens == 9


def test_the_number_of_records_does_not_grow_with_the_batch(recorded: Recorded, worker_dir: Path) -> None:
    """20 steps over 64 requests are 20 records beside those of joins, first tokens and ends."""
    engine = tailspan.Engine("mine", "m")
    handles = [Context().run(tailspan.request().__enter__) for _ in range(64)]
    with tailspan.step(engine, handles):
        for handle in handles:
            handle.token()
    before = process.ring()._head
    for _ in range(20):
        with tailspan.step(engine, handles):
            for handle in handles:
                handle.token()
    assert process.ring()._head - before == 20


def test_a_request_that_comes_back_was_evicted(recorded: Recorded) -> None:
    """Missing from step 2 and back in step 3: `preempted` is cut out of decode, and its token times skip it."""
    engine = tailspan.Engine("mine", "m")
    with tailspan.request() as request:
        for batch in ([request], [], [request], [request]):
            with tailspan.step(engine, batch, preempted=1 - len(batch)):
                work()
                for handle in batch:
                    handle.token()
        request.finish()
    one = recorded.one()
    assert one.stage_names == ["prefill", "preempted", "decode", "respond"]
    (preempted,) = [stage for stage in one.stages if stage.stage == "preempted"]
    assert preempted.end_ns - preempted.begin_ns >= 2 * MS
    assert len(one.token_times) == 3
    assert recorded.steps[1].preempted == 1


def test_a_request_that_just_goes_missing_finished_at_its_last_step(recorded: Recorded) -> None:
    """Without `finish` the last step with the request is its last, once it ends; no eviction is invented."""
    engine = tailspan.Engine("mine", "m")
    with tailspan.request() as request:
        for batch in ([request], [request], [], []):
            with tailspan.step(engine, batch):
                work()
                for handle in batch:
                    handle.token()
        work()
    one = recorded.one()
    assert one.state.finish_step == 2
    assert one.stage_names == ["prefill", "decode", "respond"]


def test_a_worker_that_never_says_token_gets_one_a_step(recorded: Recorded) -> None:
    """Steps alone give prefill, decode and gaps."""
    engine = tailspan.Engine("mine", "m")
    with tailspan.request() as request:
        for _ in range(4):
            with tailspan.step(engine, [request], decode_tokens=1):
                work()
    one = recorded.one()
    assert one.stage_names[:2] == ["prefill", "decode"]
    assert len(one.token_times) == 4
    assert one.state.first_token_step == 1


def test_chunked_prefill_ends_with_the_first_token(recorded: Recorded) -> None:
    """Two steps without a token are prefill; the prefill has three steps."""
    engine = tailspan.Engine("mine", "m")
    with tailspan.request() as request:
        for number in range(4):
            with tailspan.step(engine, [request]) as step:
                work()
                if number >= 2:
                    step.tokens(request)
                if number == 3:
                    step.finish(request)
    one = recorded.one()
    assert one.state.first_token_step == 3
    assert one.state.prefill_steps == 3
    assert len(one.token_times) == 2


def test_an_abort_in_the_batch_ends_in_decode(recorded: Recorded) -> None:
    """A client that leaves while its request is in the batch ends it there; later steps do not bring it back."""
    engine = tailspan.Engine("mine", "m")

    def aborted() -> None:
        with tailspan.request() as request:
            for _ in range(2):
                with tailspan.step(engine, [request]):
                    work()
                    request.token()
            with tailspan.step(engine, [request]):
                raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        aborted()
    with tailspan.step(engine, []):
        pass
    one = recorded.one()
    assert one.state.outcome == "cancelled"
    assert one.stage_names[:2] == ["prefill", "decode"]
    assert one.state.finish_step == 3


def test_text_and_tokenizer_by_hand_join_the_engines_stages(recorded: Recorded) -> None:
    """With steps, `tokenize` comes before, the detokenize calls are one stage after, with all their work."""
    engine = tailspan.Engine("mine", "m")
    with tailspan.request() as request:
        with tailspan.stage("tokenize"):
            work()
        with tailspan.stage("queue"):
            work()
        for number in range(3):
            with tailspan.step(engine, [request]):
                work()
                request.token()
                if number == 2:
                    request.finish()
            with tailspan.stage("detokenize"):
                work()
        work()
    one = recorded.one()
    assert [s for s in one.stage_names if s != "dispatch"] == [
        "tokenize",
        "queue",
        "prefill",
        "decode",
        "detokenize",
        "respond",
    ]
    detokenize = next(stage for stage in one.stages if stage.stage == "detokenize")
    assert detokenize.busy_ns is not None
    assert detokenize.busy_ns >= 6 * MS
    assert without_gaps(one)


def test_threads_share_an_engine(recorded: Recorded) -> None:
    """A thread that steps, eight that wait for their answers: every request is complete and finished once."""
    engine = tailspan.Engine("mine", "m")
    lock = threading.Lock()
    running: list[tuple[tailspan.RequestHandle, threading.Event, list[int]]] = []
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            with lock:
                batch = list(running)
            if not batch:
                time.sleep(0.0005)
                continue
            with tailspan.step(engine, [handle for handle, _, _ in batch]):
                time.sleep(0.0005)
                for entry in batch:
                    handle, done, left = entry
                    handle.token()
                    left[0] -= 1
                    if not left[0]:
                        handle.finish()
                        with lock:
                            running.remove(entry)
                        done.set()

    def ask() -> None:
        for number in range(1, 11):
            with tailspan.request() as request:
                done = threading.Event()
                engine.queued(request)
                with lock:
                    running.append((request, done, [number]))
                assert done.wait(20)

    server = threading.Thread(target=serve)
    clients = [threading.Thread(target=ask) for _ in range(8)]
    for thread in (server, *clients):
        thread.start()
    for thread in clients:
        thread.join()
    over.set()
    server.join()
    done = recorded.wait(80)
    tokens = sorted(len(one.token_times) for one in done)
    assert tokens == sorted(list(range(1, 11)) * 8)
    assert all(one.state.memberships[0].leave_ns is None for one in done)
    assert all(without_gaps(one) for one in done)


def test_a_request_may_end_before_the_step_that_answered_it(recorded: Recorded) -> None:
    """The client's thread is done while the step still runs: the only token and the finish are there, once."""
    engine = tailspan.Engine("mine", "m")
    with tailspan.step(engine, requests=[]):
        pass
    scope = tailspan.request()
    request = scope.__enter__()
    with tailspan.step(engine, [request]):
        work()
        request.token()
        request.finish()
        scope.__exit__(None, None, None)
        work()
    one = recorded.one()
    assert len(one.token_times) == 1
    assert (one.state.first_token_step, one.state.finish_step) == (2, 2)
    assert one.state.finish_ns is not None
    assert one.state.finish_ns <= one.end_ns
    assert one.stage_names == ["prefill"]


def test_a_decorated_step_asks_for_its_batch(recorded: Recorded) -> None:
    """`requests` as a function is asked at the begin of every call."""
    engine = tailspan.Engine("mine", "m")
    running: list[tailspan.RequestHandle] = []

    @tailspan.step(engine, requests=lambda: running)
    def iterate() -> int:
        for request in running:
            request.token()
        return len(running)

    with tailspan.request() as request:
        assert iterate() == 0
        running.append(request)
        assert iterate() == 1
        running.clear()
    assert recorded.one().state.memberships[0].join_step == 2
    assert [step.requests for step in recorded.steps] == [0, 1]


def test_a_wrong_stage_is_refused_where_it_is_written() -> None:
    """UserError at once, recorder or not, and it lists the stages; so does a forgotten pair of brackets."""
    with pytest.raises(UserError, match="unknown stage 'prefil'") as caught:
        tailspan.stage("prefil")  # type: ignore[arg-type]
    assert "prefill" in caught.value.remedy
    with pytest.raises(UserError, match="brackets"):
        tailspan.request(work)  # type: ignore[arg-type]


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


def test_the_active_span_is_the_parent(recorded: Recorded) -> None:
    """Code that is traced with OpenTelemetry gets its requests as children."""
    parent = SpanContext(
        int("ab" * 16, 16), int("cd" * 8, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)
    )
    with use_span(NonRecordingSpan(parent)), tailspan.request():
        pass
    one = recorded.one()
    assert (one.state.trace_id, one.state.parent_id) == (parent.trace_id, parent.span_id)


def test_steps_that_overlap_say_which_one_is_meant(recorded: Recorded) -> None:
    """Planned ahead: step 2 begins before step 1 ended; each request's tokens belong to the step that names them."""
    engine = tailspan.Engine("mine", "m")
    with tailspan.request() as request:
        first = tailspan.step(engine, [request])
        second = tailspan.step(engine, [request])
        first.__enter__()
        work()
        second.__enter__()
        first.tokens(request)
        first.__exit__(None, None, None)
        work()
        second.tokens(request)
        second.finish(request)
        second.__exit__(None, None, None)
    one = recorded.one()
    assert (one.state.first_token_step, one.state.finish_step) == (1, 2)
    assert [step.decode_tokens for step in recorded.steps] == [0, 1]
    assert one.state.memberships[0].leave_ns is None


def test_a_child_after_fork_is_another_engine(recorded: Recorded) -> None:
    """The child's engine has an id of its own and counts its steps from 1."""
    engine = tailspan.Engine("mine", "m")
    with tailspan.step(engine):
        pass
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        with tailspan.step(engine) as step:
            pass
        os.write(write, f"{engine.id} {step.number}".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    told, number = os.read(read, 100).decode().split()
    os.close(read)
    assert told != engine.id
    assert number == "1"


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
