"""The device's side of `generate()`: where a step's work begins, and the model's layers.

The begin is seen by PyTorch's registered hooks, two for each model that generates and only on the model itself: what is
deep-copied or pickled stays whole, and inside `torch.compile` they are nothing. `restore` takes them off again.
A model whose parameters are on several devices is not timed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from tailspan.engines.probing import probe_on
from tailspan.engines.transformers_models import thread
from tailspan.guard import Guard
from tailspan.recorder import Engine

if TYPE_CHECKING:
    from tailspan.device.steps import StepProbe

_GUARD = Guard("transformers.forward")
_handles: WeakKeyDictionary[Any, tuple[Any, Any]] = WeakKeyDictionary()


def probe(model: Any, engine: Engine) -> StepProbe | None:
    """Return the probe of an engine of the model, and let its forward pass tell of itself."""
    found = None
    with _GUARD:
        found = probe_on(model, engine.id)
        if found is not None and model not in _handles:
            _handles[model] = (model.register_forward_pre_hook(_begins), model.register_forward_hook(_returned))
    return found


def restore() -> None:
    """Take all hooks off."""
    while _handles:
        _, handles = _handles.popitem()
        for handle in handles:
            handle.remove()


def _begins(_: Any, __: Any) -> None:
    if sys.modules["torch"].compiler.is_compiling():
        return
    run = thread.run
    if run is not None and not thread.nested:
        with _GUARD:
            run.forward_begins()


def _returned(_: Any, __: Any, ___: Any) -> None:
    if sys.modules["torch"].compiler.is_compiling():
        return
    run = thread.run
    if run is not None and not thread.nested:
        with _GUARD:
            run.forward_returned()
