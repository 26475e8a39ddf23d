"""`LLM` in a script: every prompt is a trace of its own or belongs to the caller's request."""

from __future__ import annotations

import pytest

from tailspan import attributes as attr
from tests.vllm.conftest import RunOffline
from tests.vllm.running import Offline
from tests.vllm.traced import (
    ALL_STAGES,
    IMPORTABLE,
    check_all,
    check_alone,
    check_stopped,
    one,
    steps_of,
    traced,
)

BODY = """
import time
import tailspan
from tests.vllm.cases import case, left_over
from vllm.sampling_params import BeamSearchParams, StructuredOutputsParams

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
value = {"begun": time.time_ns()}
quiet = {"use_tqdm": False}
llm.generate(["Warm up"], greedy, **quiet)

def answer(**more):
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, **more})

def attempt(name, prompts):
    with case(name):
        try:
            llm.generate(prompts, answer(), **quiet)
        except Exception as error:
            value[name] = type(error).__name__

with case("several"):
    found = llm.generate(["One", "Two and a bit", "Three " * 20], [answer(max_tokens=n) for n in (3, 6, 9)], **quiet)
    value["several"] = [[one.request_id, len(one.prompt_token_ids), len(one.outputs[0].token_ids)] for one in found]
with case("chat"):
    (found,) = llm.chat(QUESTION, answer(max_tokens=30, ignore_eos=False), **quiet)
    value["chat"] = found.outputs[0].text
with case("n"):
    (found,) = llm.generate(["Once"], answer(n=6, temperature=1.0, seed=3), **quiet)
    value["n"] = [len(one.token_ids) for one in found.outputs]
with case("stop"):
    (found,) = llm.chat(QUESTION, answer(max_tokens=40, stop=["Paris"]), **quiet)
    value["stop"] = found.outputs[0].text
for name, given in {"choice": ["yes", "no"], "regex": "[0-9]{3}", "json": SCHEMA}.items():
    params = answer(max_tokens=20, ignore_eos=False, structured_outputs=StructuredOutputsParams(**{name: given}))
    with case(name):
        (found,) = llm.generate(["Is it?"], params, **quiet)
        value[name] = [found.outputs[0].text, len(found.outputs[0].token_ids)]
for name in ("chunked", "cached"):
    with case(name):
        llm.generate([{"prompt_token_ids": list(range(1000, 1200))}], answer(), **quiet)
with case("beam"):
    found = llm.beam_search([{"prompt": "Once"}, {"prompt": "Two"}], BeamSearchParams(beam_width=2, max_tokens=2))
    value["beam"] = [len(one.sequences) for one in found]
with case("priority"):
    llm.generate(["One", "Two"], answer(), priority=[5, 0], **quiet)
attempt("too long", ["Good", {"prompt_token_ids": [7] * 2000}, "Never reached"])
attempt("unknown token", [{"prompt_token_ids": [10**6]}])
with case("given up"):
    engine = llm.llm_engine
    engine.add_request("given-up", "Tell me more", answer(max_tokens=100))
    engine.add_request("stays", "Tell me less", answer())
    for _ in range(3):
        engine.step()
    engine.abort_request(["given-up"])
    while engine.has_unfinished_requests():
        engine.step()
with tailspan.request("mine"):
    llm.generate(["One", "Two", "Three"], [answer(max_tokens=n) for n in (3, 4, 5)], **quiet)
value["left over"] = left_over(llm.llm_engine)
return value
"""


@pytest.fixture(scope="module")
def done(offline: RunOffline) -> Offline:
    """Many calls of one `LLM` in one process."""
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 512, "block_size": 32}
    return offline(BODY, scheduling_policy="priority", **sizes, **IMPORTABLE)


def test_all_of_every_request_is_explained(done: Offline) -> None:
    """Stages follow each other, lie inside the request, and leave at most 1 % of it; nothing is kept in the end."""
    check_all(done, at_least=20)


def test_each_prompt_is_a_request(done: Offline) -> None:
    """Three prompts of one call: counts, ids, reasons, and one end each, under the active OpenTelemetry span."""
    found = traced(done.spans, "several")
    told = [[r[attr.GEN_AI_RESPONSE_ID], r[attr.GEN_AI_INPUT_TOKENS], r[attr.GEN_AI_OUTPUT_TOKENS]] for r in found]
    assert told == done.value["several"]
    for request in found:
        assert request.names == ALL_STAGES
        assert request.outcome == "ok"
        assert request[attr.GEN_AI_FINISH_REASONS] == ["length"]
        assert request[attr.GEN_AI_OPERATION] == "text_completion"
        assert request[attr.ENGINE_NAME] == "vllm"
    ends = [request.root.end_time_unix_nano for request in found]
    assert ends == sorted(ends)
    assert len({request.root.span_id for request in found}) == 3


def test_a_call_outside_any_span_has_a_trace_of_its_own(done: Offline) -> None:
    """No parent, and the trace is nobody else's."""
    check_alone(done)


def test_chat(done: Offline) -> None:
    """The model ends its own answer."""
    assert "Paris" in done.value["chat"]
    assert one(done, "chat").names == ALL_STAGES
    assert one(done, "chat")[attr.GEN_AI_FINISH_REASONS] == ["stop"]


def test_several_sequences_of_one_prompt(done: Offline) -> None:
    """Six answers where four run at once: one request from the first to the last, tokens summed."""
    request = one(done, "n")
    assert done.value["n"] == [8] * 6
    assert request[attr.GEN_AI_OUTPUT_TOKENS] == 8 * 6
    # Two of the six wait for the others.
    assert request.names == [*ALL_STAGES[:5], "preempted", *ALL_STAGES[4:]]


def test_a_stop_string(done: Offline) -> None:
    """Decode ends when the text is there, with the reason `stop`, and the request is no failure."""
    assert done.value["stop"].endswith("is ")
    check_stopped(one(done, "stop"))


def test_guided_decoding(done: Offline) -> None:
    """Choice, regular expression and JSON schema: the usual stages and the right number of tokens."""
    assert done.value["choice"][0] in ("yes", "no")
    assert done.value["regex"][0].isdigit()
    for name in ("choice", "regex", "json"):
        request = one(done, name)
        assert request.names == ALL_STAGES
        assert request[attr.GEN_AI_OUTPUT_TOKENS] == done.value[name][1]


def test_a_long_prompt_is_computed_in_chunks(done: Offline) -> None:
    """200 tokens, 64 a step: four; and the second time only what the cache does not have."""
    first, second = one(done, "chunked"), one(done, "cached")
    assert first.stage("prefill", attr.PREFILL_CHUNKS) == 4
    assert first.stage("prefill", attr.CACHED_TOKENS) is None
    assert second.stage("prefill", attr.CACHED_TOKENS) == 192
    assert second.stage("prefill", attr.PREFILL_CHUNKS) == 1
    assert first.stage("prefill", attr.STEP_LAST) - first.stage("prefill", attr.STEP_FIRST) == 3


def test_beam_search_is_one_request(done: Offline) -> None:
    """Not one for each beam and token; its sequences count in the steps."""
    assert done.value["beam"] == [2, 2]
    request = one(done, "beam")
    assert request.names == ["tokenize", "decode"]
    assert request[attr.PROMPTS] == 2


def test_priorities(done: Offline) -> None:
    """Of two requests, only the one that has a priority says so."""
    assert [request.attributes.get(attr.PRIORITY) for request in traced(done.spans, "priority")] == [5, None]


def test_a_refused_prompt(done: Offline) -> None:
    """It is a request that failed; those of the same call that vLLM gives up for it are cancelled."""
    good, bad = traced(done.spans, "too long")
    assert (good.outcome, good[attr.GEN_AI_FINISH_REASONS]) == ("cancelled", ["abort"])
    for name, request in (("too long", bad), ("unknown token", one(done, "unknown token"))):
        assert request.outcome == "error"
        assert request[attr.ERROR_TYPE] == done.value[name] == "VLLMValidationError"


def test_a_request_that_is_given_up(done: Offline) -> None:
    """It ends where it is given up, and its neighbour goes on."""
    given_up, stays = traced(done.spans, "given up")
    assert given_up.outcome == "cancelled"
    assert given_up[attr.GEN_AI_FINISH_REASONS] == ["abort"]
    assert 0 < given_up[attr.GEN_AI_OUTPUT_TOKENS] < 8
    assert (stays.outcome, stays[attr.GEN_AI_OUTPUT_TOKENS]) == ("ok", 8)
    assert given_up.root.end_time_unix_nano < stays.root.end_time_unix_nano


def test_prompts_inside_a_request_belong_to_it(done: Offline) -> None:
    """One request with all their stages, ended by its block; no work of the tokenizer counts twice."""
    (request,) = [found for found in traced(done.spans) if found.root.name == "mine"]
    assert request.names == ALL_STAGES
    assert request[attr.GEN_AI_OUTPUT_TOKENS] == 3 + 4 + 5
    assert request.outcome == "ok"
    assert 0 < request.stage("tokenize", attr.BUSY_NS) <= round(request.ms("tokenize") * 1e6)


def test_steps_hold_their_batches(done: Offline) -> None:
    """No step has more than four sequences or 64 tokens, and none is lost."""
    steps = steps_of(done.spans)
    assert [step[attr.STEP_NUMBER] for step in steps] == list(range(1, len(steps) + 1))
    assert max(step[attr.STEP_REQUESTS] for step in steps) == 4
    assert max(step[attr.STEP_PREFILL_TOKENS] + step[attr.STEP_DECODE_TOKENS] for step in steps) <= 64
