"""tailspan: distributed tracing for LLM inference.

    import tailspan
    tailspan.instrument()      # patches the engines that are, or will be, imported
    ...
    tailspan.uninstrument()    # puts every original back

Or without a line of code: `tailspan run -- CMD`, or `opentelemetry-instrument CMD`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailspan.errors import UserError
from tailspan.version import __version__

if TYPE_CHECKING:
    from tailspan.api import instrument, uninstrument

__all__ = ["UserError", "__version__", "instrument", "uninstrument"]


def __getattr__(name: str) -> Any:
    # Loaded on use: the collector and the queries import this package only for its attribute names.
    if name in ("instrument", "uninstrument"):
        from tailspan import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
