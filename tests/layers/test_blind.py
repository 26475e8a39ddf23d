"""When the calls of modules cannot be seen, the reason is said."""

from __future__ import annotations

import torch

from tailspan.layers.sampler import blind_reason
from tests.layers.architectures import ARCHITECTURES


def test_plain_model_is_seen() -> None:
    """A model that runs eagerly has no reason."""
    assert blind_reason(ARCHITECTURES["llama"]()) is None


def test_compiled_model_is_not_seen() -> None:
    """`torch.compile(model)` and `model.compile()` are told, as is one compiled layer, with its place."""
    model = ARCHITECTURES["llama"]()
    assert "torch.compile" in (blind_reason(torch.compile(model, backend="eager")) or "")
    model.model.layers[1].compile(backend="eager")
    assert (blind_reason(model) or "").startswith("model.layers.1 is compiled with torch.compile")


def test_vllm_compilation_is_told() -> None:
    """vLLM's decorator says on the module whether it compiles."""
    model = ARCHITECTURES["llama"]()
    model.model.do_not_compile = True
    assert blind_reason(model) is None
    model.model.do_not_compile = False
    assert "vLLM" in (blind_reason(model) or "")


def test_model_compiled_for_generate_is_told() -> None:
    """transformers keeps the compiled call of `generate` on the model."""
    model = ARCHITECTURES["llama"]()
    model._compiled_call = lambda: None
    assert "generate" in (blind_reason(model) or "")
