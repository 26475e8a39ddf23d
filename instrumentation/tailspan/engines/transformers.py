"""Hugging Face transformers: `generate()`, continuous batching, `transformers serve`.

One table of targets, whose parts stand beside what they record: `transformers_serve` (endpoints and inference thread),
`transformers_text` (tokenizers, streamers), `transformers_generate`, `transformers_batching`. HTTP is `tailspan.asgi`.
"""

from __future__ import annotations

from tailspan.engines import (
    transformers_batching,
    transformers_forward,
    transformers_generate,
    transformers_serve,
    transformers_text,
)
from tailspan.engines.probing import forget_probes
from tailspan.engines.support import NOT_TESTED, NOT_TRACED, TESTED, Supported
from tailspan.patching import Patcher, installed, of_version

NAME = "transformers"
DISTRIBUTIONS: tuple[str, ...] = (NAME,)
SUPPORTED = ">=5.19,<5.25"

SUPPORT: tuple[Supported, ...] = (
    Supported("generate()", TESTED),
    Supported("continuous batching", TESTED),
    Supported("transformers serve", TESTED),
    Supported("num_return_sequences in continuous batching", NOT_TESTED, "the copies count in the steps only"),
    Supported("device time of steps", TESTED, "on the CPU's clock, `make gpu-check` for a GPU's"),
    Supported(
        "layers",
        TESTED,
        "eager; continuous batching also where it is compiled or in CUDA graphs, of which only the choice is tested",
    ),
    Supported("a model on several devices", NOT_TRACED, "its steps have no device time and no layers"),
)

TARGETS = (
    *transformers_serve.TARGETS,
    *transformers_text.TARGETS,
    *transformers_generate.TARGETS,
    *transformers_batching.TARGETS,
)


def patcher() -> Patcher:
    """Return the patcher of the targets of the installed version, not yet applied."""
    return Patcher(NAME, of_version(TARGETS, installed(DISTRIBUTIONS)), (transformers_forward.restore, forget_probes))
