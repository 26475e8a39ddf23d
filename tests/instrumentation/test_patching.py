"""Patching and unpatching: one table, both directions, originals back by identity."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailspan.patching import Patcher, Target, check

SOURCE = """
def function(x):
    return x + 1

class Base:
    def inherited(self):
        return "inherited"

class Engine(Base):
    def method(self, x):
        return (self, x)

    @staticmethod
    def static(x):
        return x

    @classmethod
    def cls(cls, x):
        return (cls, x)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that is importable but not imported yet."""
    name = f"patch_victim_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


def targets(module: str, calls: list[str]) -> tuple[Target, ...]:
    """Return targets of every kind; each wrapper notes its call."""

    def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        calls.append(wrapped.__name__)
        return wrapped(*args, **kwargs)

    paths = ("function", "Engine.method", "Engine.static", "Engine.cls", "Engine.inherited")
    return tuple(Target(module, path, wrapper, "nothing") for path in paths)


def call_all(loaded: Any) -> list[Any]:
    """Call every function of the module."""
    engine = loaded.Engine()
    return [
        loaded.function(1),
        engine.method(2)[1],
        engine.static(3),
        loaded.Engine.cls(4),
        engine.inherited(),
        loaded.Base().inherited(),
    ]


@pytest.mark.parametrize("imported_first", [True, False])
def test_every_kind_of_function_is_wrapped_and_restored_by_identity(module: str, imported_first: bool) -> None:
    """Results are untouched while patched, and the namespaces are the same objects as before afterwards."""
    calls: list[str] = []
    patcher = Patcher("test", targets(module, calls))
    if not imported_first:
        patcher.apply()
    loaded = __import__(module)
    expected = [2, 2, 3, (loaded.Engine, 4), "inherited", "inherited"]
    if imported_first:
        before = dict(vars(loaded)), dict(vars(loaded.Engine)), dict(vars(loaded.Base))
        patcher.apply()
    assert call_all(loaded) == expected
    assert calls == ["function", "method", "static", "cls", "inherited"]
    patcher.undo()
    assert call_all(loaded) == expected
    assert len(calls) == 5
    if imported_first:
        after = dict(vars(loaded)), dict(vars(loaded.Engine)), dict(vars(loaded.Base))
        for old, new in zip(before, after, strict=True):
            assert old.keys() == new.keys()
            assert all(old[key] is new[key] for key in old)


def test_a_module_imported_after_undo_stays_untouched(module: str) -> None:
    """The import hook of an undone patcher does nothing."""
    calls: list[str] = []
    patcher = Patcher("test", targets(module, calls))
    patcher.apply()
    patcher.undo()
    call_all(__import__(module))
    assert calls == []


def test_a_missing_target_is_named_and_the_rest_works(module: str) -> None:
    """An engine version without one of the functions loses that hook only."""
    calls: list[str] = []
    known = targets(module, calls)
    gone = Target(module, "Engine.gone", known[0].wrapper, "the queue stage")
    patcher = Patcher("test", (gone, *known))
    loaded = __import__(module)
    patcher.apply()
    assert list(patcher.missing) == [f"{module}:Engine.gone"]
    assert patcher.patched == len(known)
    call_all(loaded)
    assert len(calls) == 5
    assert list(check(patcher.targets)) == [gone]
    patcher.undo()


def test_applying_twice_wraps_once(module: str) -> None:
    """A second apply is a no-op."""
    calls: list[str] = []
    patcher = Patcher("test", targets(module, calls))
    patcher.apply()
    patcher.apply()
    __import__(module).function(1)
    assert calls == ["function"]
    patcher.undo()
