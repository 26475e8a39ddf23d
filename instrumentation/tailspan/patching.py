"""Replacing functions of an engine, and putting every original back by identity.

One table of `Target`s drives both directions. A module is patched when it is already imported, or at the moment it is
imported later. A target that the installed version does not have is remembered as missing; the engine runs on.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import wrapt

from tailspan.guard import Guard

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]
"""wrapt's signature: (wrapped, instance, args, kwargs) -> result."""

_MISSING = object()


@dataclass(frozen=True, slots=True)
class Target:
    """One function to replace: `module` and dotted `path` inside it, the wrapper, and what is lost without it.

    `since` and `until` limit it to versions of the engine, say from "0.18" on and before "0.22"; empty: no limit.
    """

    module: str
    path: str
    wrapper: Wrapper
    gives: str
    since: str = ""
    until: str = ""


@dataclass(slots=True)
class _Applied:
    parent: Any
    name: str
    original: Any
    """What the parent's own namespace held (a function, a staticmethod object ...), `_MISSING` if it inherited."""


@dataclass(slots=True)
class Patcher:
    """Applies and undoes the targets of one engine."""

    engine: str
    targets: tuple[Target, ...]
    at_undo: tuple[Callable[[], None], ...] = ()
    """What takes off hooks that are on single objects, not on classes."""
    active: bool = False
    missing: dict[str, str] = field(default_factory=dict)
    """`module:path` -> why it could not be patched."""
    _applied: list[_Applied] = field(default_factory=list)
    _hooked: set[str] = field(default_factory=set)

    def apply(self) -> None:
        """Patch every target whose module is loaded, and the others as soon as they are."""
        if self.active:
            return
        self.active = True
        for module in dict.fromkeys(target.module for target in self.targets):
            if module in sys.modules:
                self._patch_module(module)
            elif module not in self._hooked:
                self._hooked.add(module)
                wrapt.register_post_import_hook(self._on_import, module)

    def undo(self) -> None:
        """Put every original back, in reverse order."""
        self.active = False
        while self._applied:
            applied = self._applied.pop()
            if applied.original is _MISSING:
                delattr(applied.parent, applied.name)
            else:
                setattr(applied.parent, applied.name, applied.original)
        for restore in self.at_undo:
            restore()

    @property
    def patched(self) -> int:
        """Targets that are replaced now."""
        return len(self._applied)

    def _on_import(self, module: Any) -> None:
        with Guard(f"{self.engine}.patch"):
            if self.active:
                self._patch_module(module.__name__)

    def _patch_module(self, module: str) -> None:
        for target in self.targets:
            if target.module == module:
                self._patch(target)

    def _patch(self, target: Target) -> None:
        try:
            parent, name = _resolve(target)
        except (ImportError, AttributeError) as error:
            self.missing[f"{target.module}:{target.path}"] = str(error)
            return
        original = vars(parent).get(name, _MISSING)
        source = original if original is not _MISSING else getattr(parent, name)
        setattr(parent, name, wrapt.FunctionWrapper(source, target.wrapper))
        self._applied.append(_Applied(parent, name, original))


def installed(distributions: tuple[str, ...]) -> str | None:
    """Return the version of the first of several distributions that is installed."""
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def of_version(targets: tuple[Target, ...], version: str | None) -> tuple[Target, ...]:
    """Return the targets that a version of the engine is expected to have; all of them when it is not known."""
    release = _release(version or "")
    if not release:
        return targets
    return tuple(
        target
        for target in targets
        if _release(target.since) <= release and (not target.until or release < _release(target.until))
    )


def _release(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def check(targets: tuple[Target, ...]) -> dict[Target, str]:
    """Import the modules of all targets and return those that the installed version lacks, with the reason."""
    missing = {}
    for target in targets:
        try:
            _resolve(target)
        except (ImportError, AttributeError) as error:
            missing[target] = str(error)
    return missing


def _resolve(target: Target) -> tuple[Any, str]:
    parent: Any = importlib.import_module(target.module)
    *owners, name = target.path.split(".")
    for owner in owners:
        parent = getattr(parent, owner)
    getattr(parent, name)
    return parent, name
