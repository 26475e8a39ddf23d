"""Hand-written workers: what requests and stages record, read back through real rings, the joiner and the partition."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Generator, Iterator

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

import tailspan
from tailspan import attributes as attr
from tailspan.errors import UserError
from tailspan.recorder import begin_request, now_ns
from tailspan.recorder import current_request as recorded_request
from tests.engines.recorded import Recorded
from tests.instrumentation.handmade import MS, work


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


def test_a_wrong_stage_is_refused_where_it_is_written() -> None:
    """UserError at once, recorder or not, and it lists the stages; so does a forgotten pair of brackets."""
    with pytest.raises(UserError, match="unknown stage 'prefil'") as caught:
        tailspan.stage("prefil")  # type: ignore[arg-type]
    assert "prefill" in caught.value.remedy
    with pytest.raises(UserError, match="brackets"):
        tailspan.request(work)  # type: ignore[arg-type]


def test_the_active_span_is_the_parent(recorded: Recorded) -> None:
    """Code that is traced with OpenTelemetry gets its requests as children."""
    parent = SpanContext(
        int("ab" * 16, 16), int("cd" * 8, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)
    )
    with use_span(NonRecordingSpan(parent)), tailspan.request():
        pass
    one = recorded.one()
    assert (one.state.trace_id, one.state.parent_id) == (parent.trace_id, parent.span_id)
