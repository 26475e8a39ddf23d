"""Every target exists in the installed versions, and every original comes back by identity."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest

from tailspan import asgi, guard
from tailspan.engines import transformers as engine
from tailspan.patching import Patcher, Target
from tests.engines.recorded import Recorded

OPTIONAL = {
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.protocols.http.zttp_impl",
    "transformers.cli.serving.systemone",
}
"""Modules that need a distribution which a server may have or not, or that only newer versions have."""
TARGETS = [target for target in (*asgi.TARGETS, *engine.TARGETS) if target.module not in OPTIONAL]


def raw(target: Target) -> Any:
    """What the owner's namespace holds under the target's name."""
    owner: Any = importlib.import_module(target.module)
    *owners, name = target.path.split(".")
    for part in owners:
        owner = getattr(owner, part)
    return vars(owner).get(name)


def both() -> tuple[Patcher, Patcher]:
    """The patchers of HTTP and of transformers."""
    return asgi.patcher(), engine.patcher()


def test_every_target_is_there() -> None:
    """With everything imported nothing is missing."""
    for target in TARGETS:
        importlib.import_module(target.module)
    patchers = both()
    for patcher in patchers:
        patcher.apply()
    try:
        assert [patcher.missing for patcher in patchers] == [{}, {}]
        assert sum(patcher.patched for patcher in patchers) >= len(TARGETS)
    finally:
        for patcher in patchers:
            patcher.undo()


def test_originals_come_back_by_identity() -> None:
    """After two rounds of apply and undo, each namespace holds what it held before."""
    before = [raw(target) for target in TARGETS]
    for _ in range(2):
        patchers = both()
        for patcher in patchers:
            patcher.apply()
        assert all(raw(target) is not original for target, original in zip(TARGETS, before, strict=True))
        for patcher in patchers:
            patcher.undo()
    assert all(raw(target) is original for target, original in zip(TARGETS, before, strict=True))


def test_modules_imported_later_are_patched_and_restored() -> None:
    """Applied before transformers is imported: patched at import; undone: the functions are the module's own."""
    program = """
import sys
from tailspan import asgi
from tailspan.engines import transformers as engine
assert "transformers" not in sys.modules and "torch" not in sys.modules and "fastapi" not in sys.modules
patchers = [asgi.patcher(), engine.patcher()]
for patcher in patchers: patcher.apply()
import fastapi
from transformers.generation.utils import GenerationMixin
import wrapt
assert isinstance(vars(GenerationMixin)["generate"], wrapt.FunctionWrapper)
assert isinstance(vars(fastapi.FastAPI)["__call__"], wrapt.FunctionWrapper)
original = vars(GenerationMixin)["generate"].__wrapped__
for patcher in patchers: patcher.undo()
assert vars(GenerationMixin)["generate"] is original
import transformers.generation.continuous_batching.continuous_api as api
assert not isinstance(vars(api.ContinuousBatchingManager)["add_request"], wrapt.FunctionWrapper)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_without_a_recorder_the_hooks_do_nothing(model: Any) -> None:
    """Patched but not recording: generate() works, no error is swallowed."""
    import torch

    guard.failures.clear()
    patcher = engine.patcher()
    patcher.apply()
    try:
        assert model.generate(torch.arange(4)[None], max_new_tokens=2).shape == (1, 6)
    finally:
        patcher.undo()
    assert not guard.failures


def test_a_broken_hook_does_not_reach_the_engine(
    recorded: Recorded, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In production an error of ours is counted and the call returns what it returns."""
    import torch

    from tailspan.engines.transformers_run import Run

    def broken(*_: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setenv("TAILSPAN_STRICT", "0")
    monkeypatch.setattr(Run, "sampled", broken)
    guard.failures.clear()
    assert model.generate(torch.arange(4)[None], max_new_tokens=2).shape == (1, 6)
    assert guard.failures == {"transformers.generate": 2}
    assert recorded.one().state.outcome == "ok"
    guard.failures.clear()
