"""`generate()`: one request, exact steps and tokens, for every way of decoding."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from opentelemetry.sdk.trace import TracerProvider
from transformers import TextIteratorStreamer

from tailspan import attributes as attr
from tailspan.engines.transformers_run import Run
from tailspan.recorder import begin_request, current_request, now_ns
from tests.engines.conftest import make_model
from tests.engines.recorded import INPUT, OUTPUT, Recorded

PROMPT = torch.arange(10)[None]
NEW = 6


@pytest.mark.parametrize(
    ("prompts", "rows", "chunks", "options"),
    [
        pytest.param(1, 1, 1, {"do_sample": False}, id="greedy"),
        pytest.param(3, 3, 1, {"do_sample": True}, id="sampling a batch of three"),
        pytest.param(1, 3, 1, {"num_beams": 3}, id="beam search"),
        pytest.param(1, 2, 1, {"num_return_sequences": 2, "do_sample": True}, id="two sequences for a prompt"),
        pytest.param(1, 1, 3, {"prefill_chunk_size": 4}, id="chunked prefill"),
    ],
)
def test_every_forward_pass_is_a_step(
    recorded: Recorded, model: Any, prompts: int, rows: int, chunks: int, options: dict[str, Any]
) -> None:
    """The first step is the prefill and gives a token; one decode step follows for each further token."""
    output = model.generate(PROMPT.repeat(prompts, 1), max_new_tokens=NEW, **options)
    request = recorded.one()
    assert request.state.outcome == "ok"
    assert request.stage_names == ["prefill", "decode", "respond"]
    assert request.gap_ns == 0
    assert request[INPUT] == 10 * prompts
    assert request[OUTPUT] == NEW * output.shape[0]
    assert request[attr.PROMPTS] == prompts
    assert request.state.prefill_steps == chunks
    assert len(request.token_times) == NEW
    steps = recorded.steps
    assert [step.prefill_tokens for step in steps] == [10 * prompts] + [0] * (NEW - 1)
    assert [step.decode_tokens for step in steps] == [0] + [rows] * (NEW - 1)
    assert [step.number for step in steps] == list(range(steps[0].number, steps[0].number + NEW))
    assert request.state.finish_step == steps[-1].number
    assert all(earlier.end_ns <= later.begin_ns for earlier, later in itertools.pairwise(steps))


def test_the_text_is_the_same_with_and_without_hooks(recorded: Recorded, model: Any) -> None:
    """Greedy decoding gives the tokens that the unpatched function gives."""
    plain = type(model).generate.__wrapped__(model, PROMPT, max_new_tokens=NEW, do_sample=False)
    assert torch.equal(plain, model.generate(PROMPT, max_new_tokens=NEW, do_sample=False))
    recorded.one()


def test_a_single_token_has_no_decode(recorded: Recorded, model: Any) -> None:
    """With one token the prefill is all there is."""
    model.generate(PROMPT, max_new_tokens=1)
    request = recorded.one()
    assert request.stage_names == ["prefill", "respond"]
    assert request[OUTPUT] == 1


@pytest.mark.filterwarnings("ignore")
def test_an_assistant_is_part_of_the_steps(recorded: Recorded, model: Any) -> None:
    """An assistant that always guesses right saves steps; its own calls are no requests."""
    model.generate(PROMPT, max_new_tokens=12, assistant_model=make_model(), do_sample=False)
    request = recorded.one()
    assert request[OUTPUT] == 12
    assert len(recorded.steps) < 12
    assert 1 + sum(step.decode_tokens for step in recorded.steps) <= 12
    assert request.gap_ns == 0


@pytest.mark.parametrize("assisted", [False, True])
def test_a_streamer_is_detokenisation(recorded: Recorded, model: Any, tokenizer: Any, assisted: bool) -> None:
    """Every put but the prompt's is text of the request; the engine has finished before the stream ends."""
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
    options: dict[str, Any] = {"prompt_lookup_num_tokens": 2} if assisted else {}
    thread = threading.Thread(
        target=model.generate, args=(PROMPT,), kwargs={"max_new_tokens": NEW, "streamer": streamer, **options}
    )
    thread.start()
    assert "".join(streamer)
    thread.join()
    request = recorded.one()
    assert request.stage_names == ["prefill", "decode", "detokenize", "respond"]
    request.check_boundaries(gap_ms=0)
    assert request.state.text_busy_ns > 0
    assert request[OUTPUT] == NEW
    # A put is nobody's step: steps begin after it.
    assert sum(step.end_ns - step.begin_ns for step in recorded.steps) < request.end_ns - request.begin_ns


def test_a_prompt_that_is_put_into_the_stream_is_no_text(recorded: Recorded, model: Any, tokenizer: Any) -> None:
    """Without skip_prompt the streamer decodes the prompt during prefill; that is not output."""
    busy: list[int] = []

    class Watching(TextIteratorStreamer):
        def put(self, value: torch.Tensor) -> None:
            request = current_request.get()
            assert request is not None
            busy.append(request._text_busy_ns)
            super().put(value)

    model.generate(PROMPT, max_new_tokens=3, streamer=Watching(tokenizer))
    recorded.one()
    assert busy[:2] == [0, 0]
    assert busy[2] > 0


def test_a_generate_continues_the_callers_trace(recorded: Recorded, model: Any) -> None:
    """The request is a child of the OpenTelemetry span that is active at the call."""
    with TracerProvider(shutdown_on_exit=False).get_tracer("test").start_as_current_span("caller") as span:
        model.generate(PROMPT, max_new_tokens=1)
    context = span.get_span_context()
    state = recorded.one().state
    assert (state.trace_id, state.parent_id) == (context.trace_id, context.span_id)


def test_an_exception_in_the_model_ends_the_request(
    recorded: Recorded, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller gets the very exception; the request says what was done until then."""
    error = ArithmeticError("boom")
    forward, calls = type(model).forward, iter(range(100))

    def fails_third(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == 2:
            raise error
        return forward(*args, **kwargs)

    monkeypatch.setattr(type(model), "forward", fails_third)
    with pytest.raises(ArithmeticError) as caught:
        model.generate(PROMPT, max_new_tokens=NEW)
    assert caught.value is error
    request = recorded.one()
    assert (request.state.outcome, request.state.error_type) == ("error", "ArithmeticError")
    assert request[OUTPUT] == 2
    assert len(request.token_times) == 2
    assert [step.decode_tokens for step in recorded.steps] == [0, 1, 0]
    assert request.gap_ns == 0
    monkeypatch.undo()


def test_a_prefill_that_fails_gives_no_token(recorded: Recorded, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The join expects the first token of the step, which says that it failed."""

    def fails(*_: Any, **__: Any) -> Any:
        raise ArithmeticError("boom")

    monkeypatch.setattr(type(model), "forward", fails)
    with pytest.raises(ArithmeticError):
        model.generate(PROMPT, max_new_tokens=NEW)
    request = recorded.one()
    assert request.state.first_token_ns is None
    assert request.token_times == []
    assert (len(recorded.steps), recorded.steps[0].failed) == (1, True)
    assert request.stage_names[0] == "prefill"
    assert "decode" not in request.stage_names


def test_an_argument_that_generate_refuses_is_an_error(recorded: Recorded, model: Any) -> None:
    """An exception before the first forward pass also leaves a complete request."""
    with pytest.raises(ValueError, match="not used by the model"):
        model.generate(PROMPT, max_new_tokens=NEW, no_such_argument=1)
    request = recorded.one()
    assert (request.state.outcome, request.state.error_type) == ("error", "ValueError")


def test_two_threads_have_an_engine_each(recorded: Recorded, model: Any) -> None:
    """Concurrent calls on one model do not mix their steps."""
    threads = [threading.Thread(target=model.generate, args=(PROMPT,), kwargs={"max_new_tokens": 20}) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    requests = recorded.wait(2)
    for request in requests:
        assert len(request.token_times) == 20
        assert request.gap_ns == 0
    if requests[1].begin_ns < requests[0].end_ns:
        assert requests[0].state.engine != requests[1].state.engine


def test_a_running_request_keeps_its_own_end(recorded: Recorded, model: Any, tokenizer: Any) -> None:
    """Inside a request the tokenizer is measured once per outermost call, and generate() does not end the request."""
    request = begin_request("mine", now_ns())
    token = current_request.set(request)
    messages = [{"role": "user", "content": "hello"}]
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True, tokenize=True
    )
    output = model.generate(**inputs, max_new_tokens=NEW)
    tokenizer.batch_decode(output)
    assert not request.ended
    request.end(now_ns())
    current_request.reset(token)
    traced = recorded.one()
    assert [part.stage for part in traced.state.measured] == ["tokenize"]
    assert traced.stage_names == ["tokenize", "dispatch", "prefill", "decode", "detokenize", "respond"]
    traced.check_boundaries(gap_ms=50)
    assert 0 < traced.state.text_busy_ns <= traced.end_ns - (traced.state.finish_ns or 0)


def test_a_tokenizer_outside_a_request_is_not_recorded(recorded: Recorded, model: Any, tokenizer: Any) -> None:
    """Around an offline generate() there is no request to which tokenizing could belong."""
    ids = tokenizer("hello", return_tensors="pt")
    tokenizer.decode(model.generate(**ids, max_new_tokens=2)[0])
    assert recorded.one().state.measured == []


def test_on_a_device_a_step_ends_when_the_host_has_waited(recorded: Recorded, model: Any) -> None:
    """Where ids live on a device, the stopping criteria only launch work: the next iteration knows that it is done."""
    request = begin_request("generate", now_ns())
    run = Run(model, request, owned=True, begin_ns=now_ns(), streamer=None, waiting=None)
    ids = SimpleNamespace(shape=(1, 11), device=SimpleNamespace(type="cuda"))
    run.prepared(SimpleNamespace(num_beams=1), "input_ids", PROMPT, 10)
    run.sampled(ids)
    launched = now_ns()
    run.next_iteration()
    run.returned(torch.zeros(1, 11))
    recorded.one()
    assert [step.end_ns >= launched for step in recorded.steps] == [True]


@pytest.mark.model
def test_the_real_model_answers_and_is_traced(recorded: Recorded) -> None:
    """SmolLM2-135M answers a question; its prefill and decode cover the call."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tailspan_queries.demo.model import prepare_model

    folder = str(prepare_model())
    real = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True, tokenize=True
    )
    output = real.generate(**inputs, max_new_tokens=8, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0])
    request = recorded.one()
    assert request[attr.GEN_AI_MODEL] == folder
    assert request[OUTPUT] == output.shape[1] - inputs["input_ids"].shape[1]
    assert request.stage_names == ["prefill", "decode", "respond"]
    assert request.gap_ns == 0
