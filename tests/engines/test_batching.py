"""Continuous batching: queue, membership, steps, evictions, cancellations and errors."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.requests import FutureRequestState, RequestState, RequestStatus

from tailspan import attributes as attr
from tailspan.engines import transformers_batching
from tailspan.engines.transformers_batch import Batch, Member
from tailspan.recorder import begin_request, current_request, now_ns
from tailspan.recorder.layout import Kind
from tests.engines.recorded import INPUT, OUTPUT, Recorded


def settings(pages: int = 32, tokens: int = 16, page: int = 16) -> ContinuousBatchingConfig:
    """A small cache, so that nothing is measured at start-up."""
    return ContinuousBatchingConfig(
        page_size=page, num_blocks=pages, max_batch_tokens=tokens, use_cuda_graph=False, use_async_batching=False
    )


def generation(new_tokens: int) -> GenerationConfig:
    """Greedy, no end token."""
    return GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=257)


def test_prompts_share_steps_and_long_ones_are_prefilled_in_chunks(recorded: Recorded, model: Any) -> None:
    """Of 16 tokens a step, a prompt of 40 takes three steps; tokens and batch sizes add up; warm-up is not counted."""
    prompts = [list(range(10)), list(range(40)), list(range(5))]
    results = model.generate_batch(prompts, generation(6), settings())
    assert [len(result.generated_tokens) for result in results.values()] == [6, 6, 6]
    requests = recorded.wait(3)
    by_length = {request[INPUT]: request for request in requests}
    assert sorted(by_length) == [5, 10, 40]
    for request in requests:
        assert request.state.outcome == "ok"
        assert request[OUTPUT] == 6
        assert len(request.token_times) == 6
        assert request.stage_names == ["queue", "prefill", "decode", "respond"]
        request.check_boundaries(gap_ms=0)
    assert by_length[40].state.prefill_steps == 3
    # Only a prompt of several steps needs a record for its first token.
    assert recorded.count(Kind.FIRST_TOKEN) == sum(request.state.prefill_steps > 1 for request in requests) < 3
    assert {request[attr.GEN_AI_RESPONSE_ID] for request in requests} == {"req_0", "req_1", "req_2"}
    assert recorded.count(Kind.TEXT_ATTRIBUTE) == recorded.count(Kind.ATTRIBUTES) == 0
    steps = recorded.steps
    assert sum(step.prefill_tokens for step in steps) == 55
    assert sum(step.decode_tokens for step in steps) == 3 * 5
    assert max(step.prefill_tokens + step.decode_tokens for step in steps) <= 16
    assert max(step.requests for step in steps) == 3
    assert max(step.waiting for step in steps) >= 1
    assert all(step.kv_usage_ratio is not None and 0 < step.kv_usage_ratio <= 1 for step in steps)
    assert len({request.state.trace_id for request in requests}) == 3
    assert all(not batch._members and not batch._running for batch in transformers_batching._batches.values())


def test_an_evicted_request_leaves_and_joins_again(recorded: Recorded, model: Any) -> None:
    """A cache too small for all gives preempted time, cut out of the decode, and every request still finishes."""
    prompts = [list(range(10)), list(range(20)), list(range(5))]
    model.generate_batch(prompts, generation(30), settings(pages=8, tokens=32, page=8))
    requests = recorded.wait(3)
    evicted = [request for request in requests if "preempted" in request.stage_names]
    assert evicted
    for request in requests:
        assert request[OUTPUT] == 30
        assert request.gap_ns == 0
    for request in evicted:
        first, *later = request.state.memberships
        assert later
        assert first.leave_step is not None
        assert later[0].join_step > first.leave_step
    assert sum(step.preempted for step in recorded.steps) >= len(evicted)


def test_a_cancelled_request_ends_at_once(recorded: Recorded, model: Any) -> None:
    """The others go on; the cancelled one says so and how far it came."""
    with model.continuous_batching_context_manager(generation(200), continuous_batching_config=settings()) as manager:
        manager.add_request(list(range(8)), request_id="cancelled", streaming=True)
        manager.add_request(list(range(8)), request_id="kept", max_new_tokens=40)
        for result in manager:
            if result.request_id == "cancelled" and len(result.generated_tokens) == 3:
                manager.cancel_request("cancelled")
            elif result.request_id == "kept":
                break
    by_id = {request[attr.GEN_AI_RESPONSE_ID]: request for request in recorded.wait(2)}
    assert by_id["kept"].state.outcome == "ok"
    cancelled = by_id["cancelled"]
    assert cancelled.state.outcome == "cancelled"
    output = cancelled[OUTPUT]
    assert isinstance(output, int)
    assert 3 <= output < 200
    assert cancelled.gap_ns == 0


def test_an_exception_in_the_model_fails_all_members(
    recorded: Recorded, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running and waiting requests end with the error's class, and the step that failed is there."""
    forward, calls = type(model).forward, iter(range(1000))

    def fails_fifth(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == 4:
            raise ArithmeticError("boom")
        return forward(*args, **kwargs)

    with model.continuous_batching_context_manager(
        generation(20), continuous_batching_config=settings(), warmup=False
    ) as manager:
        monkeypatch.setattr(type(model), "forward", fails_fifth)
        manager.add_requests([list(range(12)), list(range(12))])
        requests = recorded.wait(2)
        monkeypatch.undo()
    for request in requests:
        assert (request.state.outcome, request.state.error_type) == ("error", "ArithmeticError")
        assert len(request.token_times) == request[OUTPUT]
        assert request.gap_ns == 0
    assert len(recorded.steps) == 5


def test_a_stopped_engine_refuses(recorded: Recorded, model: Any) -> None:
    """A prompt that the manager drops ends as an error, not as an open request."""
    manager = model.init_continuous_batching(generation(2), settings())
    manager.start()
    manager.add_request(list(range(4)))
    recorded.wait(1)
    manager.stop(block=True)
    assert manager.add_request(list(range(4))) is None
    refused = recorded.wait(2)[1]
    assert (refused.state.outcome, refused.state.error_type) == ("error", "request_refused")
    assert (refused.stage_names, refused[INPUT]) == (["queue"], 4)
    assert attr.GEN_AI_RESPONSE_ID not in refused.state.attributes
    assert recorded.open_requests == 0


def test_a_running_request_takes_the_first_prompt(recorded: Recorded, model: Any) -> None:
    """Further prompts at the same time become requests of their own in the same trace."""
    request = begin_request("mine", now_ns())
    token = current_request.set(request)
    model.generate_batch([list(range(4)), list(range(6))], generation(3), settings())
    current_request.reset(token)
    assert not request.ended
    request.end(now_ns())
    mine, other = recorded.wait(2)
    assert (mine.state.name, other.state.name) == ("mine", "generate")
    assert other.state.trace_id == mine.state.trace_id
    assert other.state.parent_id == mine.state.key
    assert mine[OUTPUT] == other[OUTPUT] == 3


def added_state() -> RequestState:
    """A request of three prompt tokens and two of output, as the engine knows it."""
    state = RequestState("r", [1, 2, 3], max_new_tokens=2)
    state.status = RequestStatus.DECODING
    return state


def processor(futures: list[FutureRequestState], *, active: bool = True) -> Any:
    """An engine that has just planned a step with asynchronous batching."""
    return SimpleNamespace(
        inputs_and_outputs=SimpleNamespace(
            current_pair=0,
            io_pairs=[SimpleNamespace(host_io=SimpleNamespace(requests_in_batch=futures))],
        ),
        scheduler=SimpleNamespace(waiting_requests={}, active_requests={"r": None} if active else {}),
        cache=SimpleNamespace(compute_free_capacity=lambda: 0.5),
    )


def update(batch: Batch, state: RequestState | None, token: int = 0) -> None:
    """Let the tokens of the oldest planned step arrive."""
    batch.update_begins(now_ns())
    time.sleep(0.001)
    batch.updating_at(now_ns())
    if state is not None:
        state.update_and_check_completion(token, None)
    batch.complete()
    batch.update_ended()


def test_with_asynchronous_batching_updates_take_the_oldest_plan(recorded: Recorded) -> None:
    """Step 2 is planned before the tokens of step 1 arrive; the first token still belongs to step 1."""
    batch, state = Batch("model"), added_state()
    batch.added("r", Member(begin_request("generate", now_ns()), owned=True, queued_ns=now_ns()))
    for length in (3, 1):
        batch.planned(processor([FutureRequestState(state, True, {}, length)]), now_ns())
    for token in (7, 8):
        update(batch, state, token)
    request = recorded.one()
    first, second = recorded.steps
    assert request.state.first_token_step == first.number
    assert request.state.finish_step == second.number
    assert [(step.prefill_tokens, step.decode_tokens) for step in recorded.steps] == [(3, 0), (0, 1)]
    assert request[OUTPUT] == 2
    assert second.begin_ns < first.end_ns


def test_a_token_of_a_request_evicted_meanwhile_does_not_count(recorded: Recorded) -> None:
    """Step 2 is planned without the request before step 1 has ended: its first token is the one of step 3."""
    batch, state = Batch("model"), added_state()
    batch.added("r", Member(begin_request("generate", now_ns()), owned=True, queued_ns=now_ns()))
    batch.planned(processor([FutureRequestState(state, True, {}, 3)]), now_ns())
    batch.planned(processor([], active=False), now_ns())
    update(batch, None)
    again = added_state()
    for length in (3, 1):
        batch.planned(processor([FutureRequestState(again, True, {}, length)]), now_ns())
    update(batch, None)
    for token in (7, 8):
        update(batch, again, token)
    request = recorded.one()
    assert request.state.first_token_step == recorded.steps[2].number
    assert request.state.first_token_ns == recorded.steps[2].end_ns
    assert [part.leave_step for part in request.state.memberships] == [1, None]
    assert request[OUTPUT] == 2
    assert recorded.count(Kind.FIRST_TOKEN) == 0


def test_steps_that_an_engine_abandons_give_no_token(recorded: Recorded) -> None:
    """The engine fails while the first step is under way: the step is there, and a prefill without end."""
    batch, state = Batch("model"), added_state()
    batch.added("r", Member(begin_request("generate", now_ns()), owned=True, queued_ns=now_ns()))
    batch.planned(processor([FutureRequestState(state, True, {}, 3)]), now_ns())
    batch.abandon_plans(now_ns())
    batch.failed("r", ArithmeticError())
    batch.delivered()
    request = recorded.one()
    assert request.state.first_token_ns is None
    assert request.stage_names[:2] == ["queue", "prefill"]
    assert "decode" not in request.stage_names
    assert (len(recorded.steps), recorded.steps[0].failed) == (1, True)
