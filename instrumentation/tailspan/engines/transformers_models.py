"""What the hooks of transformers share: an engine for each model, the call that a thread is in.

A model that generates in several threads at once gets one engine for each, so that an engine's steps never overlap.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from tailspan.recorder import Engine

if TYPE_CHECKING:
    from tailspan.engines.transformers_run import Run

SOFTWARE = "transformers"


class _ThreadState(threading.local):
    run: Run | None = None
    """The outermost `generate()` call of this thread."""
    nested = 0
    """How many `generate()` calls of an assistant run inside it."""
    in_text = False
    """Whether a tokenizer call or streamer is being measured: what it calls in turn belongs to it."""


thread = _ThreadState()


class EnginePool:
    """The engines of `generate()` calls: as many for a model as ran at once."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.Lock()
        self._all: WeakKeyDictionary[Any, list[Engine]] = WeakKeyDictionary()
        self._free: WeakKeyDictionary[Any, list[Engine]] = WeakKeyDictionary()

    def first(self, model: Any) -> Engine:
        """Return the engine that a queue in front of the model leads to."""
        with self._lock:
            return self._engines(model)[0]

    def acquire(self, model: Any) -> Engine:
        """Return an engine of the model that is not in use."""
        with self._lock:
            engines = self._engines(model)
            free = self._free[model]
            if free:
                return free.pop()
            engine = Engine(SOFTWARE, model_name(model))
            engines.append(engine)
            return engine

    def release(self, model: Any, engine: Engine) -> None:
        """Give an engine back."""
        with self._lock:
            self._free[model].append(engine)

    def _engines(self, model: Any) -> list[Engine]:
        engines = self._all.get(model)
        if engines is None:
            engine = Engine(SOFTWARE, model_name(model))
            engines = self._all[model] = [engine]
            self._free[model] = [engine]
        return engines


pool = EnginePool()


def model_name(model: Any) -> str:
    """Return the name or path that a model was loaded from, else its class."""
    config = getattr(model, "config", None)
    return str(getattr(config, "_name_or_path", "") or type(model).__name__)
