"""`AsyncLLM` in a script: prompts that vLLM processes in threads, and callers that go away."""

from __future__ import annotations

import pytest

from tailspan import attributes as attr
from tests.vllm.conftest import RunOffline
from tests.vllm.running import Offline
from tests.vllm.traced import ALL_STAGES, IMPORTABLE, check_all, check_alone, check_stopped, one, traced

BODY = """
import asyncio
import time
import tailspan
from tests.vllm.cases import case, left_over
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.engine.protocol import StreamingInput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

del llm
value = {}
TOKENS = {"prompt_token_ids": list(range(1000, 1040))}

def answer(**more):
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, **more})

async def ask(engine, prompt, name, params=None):
    async for last in engine.generate(prompt, params or answer(), name):
        pass
    return [len(one.token_ids) for one in last.outputs]

async def attempt(name, engine, prompt):
    with case(name):
        (error,) = await asyncio.gather(ask(engine, prompt, name), return_exceptions=True)
        value[name] = type(error).__name__

async def bits():
    yield StreamingInput(prompt={"prompt_token_ids": [1000, 1001]})
    yield StreamingInput(prompt={"prompt_token_ids": [1002, 1003]})

async def run():
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, **options))
    value["begun"] = time.time_ns()
    await ask(engine, "Warm up", "warm")
    with case("text"):
        await ask(engine, "Once upon a time", "text-1")
    with case("tokens"):
        await ask(engine, TOKENS, "tokens-1")
    with case("together"):
        prompts = ["Text one", TOKENS, "Text two", TOKENS]
        calls = [ask(engine, prompt, f"t-{n}", answer(max_tokens=3 + n)) for n, prompt in enumerate(prompts)]
        value["together"] = sum(await asyncio.gather(*calls), [])
    with tailspan.request("block"):
        await asyncio.gather(ask(engine, "Once upon", "b-1"), ask(engine, TOKENS, "b-2"))
    with case("n"):
        await ask(engine, "Once", "n-1", answer(n=3, temperature=1.0, seed=1))
    with case("stop"):
        value["stop"] = await ask(engine, "One two three four", "stop-1", answer(max_tokens=60, stop=["e"]))
    with case("cancelled"):
        task = asyncio.create_task(ask(engine, "Never ends", "c-1", answer(max_tokens=400)))
        while not engine.output_processor.request_states:
            await asyncio.sleep(0.01)
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    with case("cancelled at once"):
        tasks = [asyncio.create_task(ask(engine, "Never begins " * 100, f"d-{n}")) for n in range(3)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await attempt("too long", engine, "long " * 2000)
    await attempt("unknown token", engine, {"prompt_token_ids": [10**6]})
    (rendered,) = engine.renderer.render_cmpl([{"prompt": "Hello you"}])
    with case("rendered"):
        await asyncio.create_task(ask(engine, rendered, "e-1"))
    await asyncio.sleep(0.5)
    with case("rendered again"):
        await asyncio.create_task(ask(engine, rendered, "e-2"))
    async for _ in engine.generate(bits(), answer(output_kind=RequestOutputKind.DELTA), "bits"):
        pass
    with case("after bits"):
        await ask(engine, TOKENS, "after")
    value["left over"] = left_over(engine)
    engine.shutdown()

asyncio.run(run())
return value
"""


@pytest.fixture(scope="module")
def done(offline: RunOffline) -> Offline:
    """Many calls of one `AsyncLLM`, whose engine core is a process of its own."""
    return offline(BODY, max_num_seqs=4, max_model_len=512, **IMPORTABLE)


def test_all_of_every_request_is_explained(done: Offline) -> None:
    """Stages follow each other, lie inside the request, and leave at most 1 % of it; nothing is kept in the end."""
    check_all(done, at_least=18)


def test_a_call_outside_any_span_has_a_trace_of_its_own(done: Offline) -> None:
    """No parent, and the trace is nobody else's; start-up is no part of it."""
    check_alone(done)


def test_prompts_as_text_and_as_tokens(done: Offline) -> None:
    """The text is tokenized in a thread, which is part of the request and under the same parent."""
    assert one(done, "text").names == ALL_STAGES
    assert one(done, "tokens").names[-6:] == ALL_STAGES[-6:]
    together = traced(done.spans, "together")
    assert sorted(r[attr.GEN_AI_OUTPUT_TOKENS] for r in together) == done.value["together"] == [3, 4, 5, 6]


def test_a_caller_that_goes_away(done: Offline) -> None:
    """Whether in the middle of its answer or before its prompt was processed, it ends as cancelled."""
    request = one(done, "cancelled")
    assert request.outcome == "cancelled"
    assert "decode" in request.names
    assert all(request.outcome == "cancelled" for request in traced(done.spans, "cancelled at once"))


def test_a_rendered_prompt_counts_for_one_request_only(done: Offline) -> None:
    """The first request made of it begins with its rendering, one made of it later begins when it is made."""
    rendered, again = one(done, "rendered"), one(done, "rendered again")
    assert rendered.names == again.names == ALL_STAGES
    assert again.root.start_time_unix_nano > rendered.root.end_time_unix_nano


def test_a_prompt_that_comes_bit_by_bit_is_not_traced(done: Offline) -> None:
    """It leaves nothing behind, and what comes after it in the same task is traced again."""
    assert not [request for request in traced(done.spans) if request.attributes.get(attr.GEN_AI_RESPONSE_ID) == "bits"]
    assert one(done, "after bits").outcome == "ok"


def test_prompts_inside_a_request_belong_to_it(done: Offline) -> None:
    """One request with the stages of both, ended by its block, whichever thread processes them first."""
    (request,) = [found for found in traced(done.spans) if found.root.name == "block"]
    assert request.names[0] == "tokenize"
    assert request.names[-4:] == ALL_STAGES[-4:]
    assert request[attr.GEN_AI_OUTPUT_TOKENS] == 16
    assert request.outcome == "ok"


def test_several_sequences_of_one_prompt(done: Offline) -> None:
    """Three answers are one request, tokens summed."""
    assert one(done, "n").names == ALL_STAGES
    assert one(done, "n")[attr.GEN_AI_OUTPUT_TOKENS] == 8 * 3


def test_a_stop_string(done: Offline) -> None:
    """Decode ends when the text is there, though the engine core hears of it later."""
    check_stopped(one(done, "stop"))


def test_a_refused_prompt(done: Offline) -> None:
    """It is a request that failed, whether a thread or the caller's task finds out."""
    for name in ("too long", "unknown token"):
        assert one(done, name).outcome == "error"
        assert one(done, name)[attr.ERROR_TYPE] == done.value[name] == "VLLMValidationError"
