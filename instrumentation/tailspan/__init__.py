"""tailspan: distributed tracing for LLM inference.

    import tailspan
    tailspan.instrument()      # patches the engines that are, or will be, imported
    ...
    tailspan.uninstrument()    # puts every original back

    with tailspan.request(model="mine") as request:      # a worker of your own, see docs/API.md
        with tailspan.stage("prefill"):
            ...

Or without a line of code: `tailspan run -- CMD`, or `opentelemetry-instrument CMD`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tailspan.errors import UserError
from tailspan.version import __version__

if TYPE_CHECKING:
    from tailspan.api import instrument, uninstrument
    from tailspan.handmade import CapturedGraph, Engine, RequestHandle, current_request, request, stage, step

__all__ = [
    "CapturedGraph",
    "Engine",
    "RequestHandle",
    "UserError",
    "__version__",
    "current_request",
    "instrument",
    "request",
    "stage",
    "step",
    "uninstrument",
]

_MODULES = {"instrument": "tailspan.api", "uninstrument": "tailspan.api"}


def __getattr__(name: str) -> Any:
    # Loaded on use: the collector and the queries import this package only for its attribute names.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES.get(name, "tailspan.handmade")), name)
    globals()[name] = value  # from now on as cheap as any function
    return value
