"""Hand-written workers: what the steps of an engine record, and what its requests get from them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import warnings
from contextvars import Context
from pathlib import Path

import pytest

import tailspan
from tailspan import attributes as attr
from tailspan.recorder import process
from tests.engines.recorded import Recorded
from tests.instrumentation.handmade import MS, without_gaps, work


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
