"""vLLM versions of the last year: the real engine, scheduler and server of each, around a model that computes nothing.

The oldest and newest of each way in which vLLM reads prompts are also served over HTTP, in processes of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tailspan import attributes as attr
from tests.support.otlp_sink import attributes_of
from tests.vllm.conftest import RunOffline
from tests.vllm.running import Offline, VllmServer, serve, stages_of
from tests.vllm.versions.sources import OLDER, source_of

ROOT = str(Path(__file__).parents[2])
EXECUTOR = "tests.vllm.versions.no_model.NoModel"
INSTALLED = ""
SERVED = ("0.12.0", "0.16.0", "0.26.0")
# 20 blocks are too few for four sequences of up to 131 tokens: one is evicted. 64 tokens a step cut prompts in chunks.
SMALL = {
    "max_model_len": 256,
    "max_num_batched_tokens": 64,
    "block_size": 16,
    "num_gpu_blocks_override": 20,
    "enable_prefix_caching": True,
    "enable_chunked_prefill": True,
}
TOKENS = 40
BODY = f"""
    import vllm
    from tailspan.engines import vllm as engine
    from tailspan.patching import check
    from tests.vllm.versions.no_model import NoModel
    words = "the quick brown fox jumps over the lazy dog and runs away from the bear "
    sampling = SamplingParams(temperature=0.0, max_tokens={TOKENS}, ignore_eos=True)
    outputs = llm.generate([words * n for n in (1, 6, 3, 6)], sampling, use_tqdm=False)
    outputs += llm.generate(words * 6, sampling, use_tqdm=False)
    return {{
        "version": vllm.__version__,
        "prompt_tokens": [len(output.prompt_token_ids) for output in outputs],
        "token_ids": [output.outputs[0].token_ids for output in outputs],
        "missing": {{f"{{t.module}}:{{t.path}}": why for t, why in check(engine.patcher().targets).items()}},
        "steps": [[len(ran.tokens), sum(ran.tokens.values()), ran.evicted] for ran in NoModel.ran],
        "cached": list(NoModel.cached.values()),
    }}
"""


def search_path(version: str) -> str:
    """Return the PYTHONPATH under which `import vllm` finds a version, and the executor."""
    return ROOT if version == INSTALLED else f"{source_of(version)}:{ROOT}"


@pytest.fixture(scope="module", params=[*OLDER, INSTALLED], ids=lambda version: version or "installed")
def generated(request: pytest.FixtureRequest, offline: RunOffline) -> tuple[str, Offline]:
    """`LLM.generate` of four prompts at once, then of one of them again, with a version."""
    version: str = request.param
    return version, offline(BODY, distributed_executor_backend=EXECUTOR, PYTHONPATH=search_path(version), **SMALL)


def steps_of(spans: list[Span]) -> list[dict[str, Any]]:
    """Return the attributes of the steps in order."""
    steps = [attributes_of(span.attributes) for span in spans if span.name == "step"]
    return sorted(steps, key=lambda step: int(step[attr.STEP_NUMBER]))


def attribute(spans: list[Span], stage: str, key: str) -> list[Any]:
    """Return an attribute of every span of a stage, in order of their begin; None where it is not set."""
    named = sorted((span for span in spans if span.name == stage), key=lambda span: span.start_time_unix_nano)
    return [attributes_of(span.attributes).get(key) for span in named]


def test_no_hook_is_missing(generated: tuple[str, Offline]) -> None:
    """What the table says of a version is there in that version: nothing for `tailspan doctor` to complain about."""
    version, done = generated
    assert done.value["version"].startswith(version)
    assert done.value["missing"] == {}


def test_the_output_is_the_models(generated: tuple[str, Offline]) -> None:
    """Traced, through preemption and prefix cache, every sequence has exactly the tokens that the model samples."""
    assert generated[1].value["token_ids"] == [list(range(400, 400 + TOKENS))] * 5


def test_every_request_is_a_trace(generated: tuple[str, Offline]) -> None:
    """Five requests with all their stages and counts; one is evicted once, and the stages leave nothing over."""
    _, done = generated
    assert len(done.requests) == 5
    evicted = 0
    for root, prompt_tokens in zip(done.requests, done.value["prompt_tokens"], strict=True):
        facts = attributes_of(root.attributes)
        assert facts[attr.GEN_AI_INPUT_TOKENS] == prompt_tokens
        assert facts[attr.GEN_AI_OUTPUT_TOKENS] == TOKENS
        assert facts[attr.GEN_AI_FINISH_REASONS] == ["length"]
        stages = stages_of([span for span in done.spans if span.trace_id == root.trace_id])
        wall_ns = root.end_time_unix_nano - root.start_time_unix_nano
        assert 0 <= facts[attr.UNATTRIBUTED_NS] <= 1_000_000 + 0.01 * wall_ns
        evicted += stages.count("preempted")
        whole = ["tokenize", "dispatch", "queue", "prefill", "decode", "detokenize", "respond"]
        assert [stage for stage in dict.fromkeys(stages) if stage != "preempted"] == whole
    assert evicted == sum(len(who) for _, _, who in done.value["steps"]) == 1


def test_every_step_is_what_the_executor_ran(generated: tuple[str, Offline]) -> None:
    """Sequences, tokens and evictions of each step agree with what the model was given."""
    _, done = generated
    steps = steps_of(done.spans)
    seen = [
        (
            step[attr.STEP_REQUESTS],
            step[attr.STEP_PREFILL_TOKENS] + step[attr.STEP_DECODE_TOKENS],
            step[attr.STEP_PREEMPTED],
        )
        for step in steps
    ]
    assert seen == [(requests, tokens, len(evicted)) for requests, tokens, evicted in done.value["steps"]]
    assert all(0 <= step[attr.STEP_KV_USAGE] <= 1 for step in steps)
    assert max(step[attr.STEP_KV_USAGE] for step in steps) > 0.8
    assert max(step[attr.STEP_WAITING] for step in steps) >= 2


def test_the_prefix_cache_shows(generated: tuple[str, Offline]) -> None:
    """A prompt seen before is prefilled from the cache, by as many tokens as the scheduler reused."""
    _, done = generated
    cached = done.value["cached"]
    assert cached[-1] >= 64
    last = [span for span in done.spans if span.trace_id == done.requests[-1].trace_id]
    assert attribute(last, "prefill", attr.CACHED_TOKENS) == [cached[-1]]


@pytest.fixture(scope="module", params=SERVED)
def served(
    request: pytest.FixtureRequest, model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    """`vllm serve` of a version."""
    arguments = [f"--distributed-executor-backend={EXECUTOR}", "--num-gpu-blocks-override=80"]
    folder = tmp_path_factory.mktemp("serve")
    with serve(model_folder, folder, *arguments, PYTHONPATH=search_path(request.param)) as running:
        yield running


ASK: dict[str, Callable[[VllmServer], int]] = {
    "/v1/chat/completions": lambda server: (
        server.post(
            "/v1/chat/completions", ask(server, messages=[{"role": "user", "content": "hello"}]), **TRACED
        ).status_code
    ),
    "/v1/completions": lambda server: server.stream("/v1/completions", ask(server, prompt="hello there")).status,
}
TRACED = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


def ask(server: VllmServer, **what: Any) -> dict[str, Any]:
    """Return a request for 12 tokens."""
    return {"model": server.model, "max_tokens": 12, "ignore_eos": True, **what}


def test_a_server_is_traced_across_its_processes(served: VllmServer) -> None:
    """A chat in its caller's trace and a streamed completion: complete in the API process and in the engine core."""
    for path, send in ASK.items():
        assert send(served) == 200
        roots = {root.name: root for root in served.wait_requests(1 + list(ASK).index(path))}
        root = roots[f"POST {path}"]
        facts = attributes_of(root.attributes)
        assert facts.get(attr.GEN_AI_OUTPUT_TOKENS) == 12, facts
        assert facts[attr.GEN_AI_MODEL] == served.model
        stages = stages_of(served.trace(root))
        assert stages[0] == "receive"
        assert stages[-6:] == ["dispatch", "queue", "prefill", "decode", "detokenize", "respond"]
    (chat,) = [root for root in served.wait_requests(2) if root.name.endswith("chat/completions")]
    assert chat.trace_id.hex() == TRACED["traceparent"].split("-")[1]
    assert chat.parent_span_id.hex() == TRACED["traceparent"].split("-")[2]
    assert "tokenize" in stages_of(served.trace(chat))
