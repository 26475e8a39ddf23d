"""Says when the calls of a model's modules cannot be seen, because something compiled runs in their place."""

from __future__ import annotations

from typing import Any

_ADVICE = "its layers are timed only in steps that run uncompiled"


def blind_reason(model: Any) -> str | None:
    """Return why taps on the model's modules would see nothing, as text for a log line; None if they see.

    Looks at every module, so ask once: after the engine has prepared the model.
    """
    for path, module in model.named_modules():
        reason = _compiled(module)
        if reason:
            return f"{path or type(model).__name__} {reason}: {_ADVICE}"
    return None


def is_compiled_now(model: Any) -> bool:
    """Whether the model itself was compiled meanwhile, as transformers' `generate` does with a static cache; cheap."""
    attributes = vars(model)
    return attributes.get("_compiled_call") is not None or attributes.get("_compiled_call_impl") is not None


def _compiled(module: Any) -> str:
    attributes = vars(module)
    if "_orig_mod" in attributes.get("_modules", {}) or attributes.get("_compiled_call_impl") is not None:
        return "is compiled with torch.compile"
    if attributes.get("_compiled_call") is not None:
        return "is compiled for generate()"
    if attributes.get("do_not_compile") is False:
        return "is compiled by vLLM"
    return ""
