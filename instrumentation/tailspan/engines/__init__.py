"""The engines that tailspan knows, one module each.

An engine module has `NAME`, `DISTRIBUTIONS` (the names under which it is installed), `SUPPORTED` (the versions it was
tested with), `SUPPORT` (what of it is tested) and `patcher() -> Patcher`. It imports without its engine.
"""

from __future__ import annotations

from typing import Protocol

from tailspan.engines import transformers, vllm
from tailspan.engines.support import Supported
from tailspan.patching import Patcher


class EngineModule(Protocol):
    """What every engine module offers."""

    NAME: str
    DISTRIBUTIONS: tuple[str, ...]
    SUPPORTED: str
    SUPPORT: tuple[Supported, ...]

    def patcher(self) -> Patcher:
        """Return a new patcher with all targets of the engine."""


ENGINES: dict[str, EngineModule] = {transformers.NAME: transformers, vllm.NAME: vllm}
