"""The entry point for `opentelemetry-instrument`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from tailspan.api import instrument, uninstrument


class TailspanInstrumentor(BaseInstrumentor):  # type: ignore[misc] # untyped base
    """Switches tailspan on in every process that `opentelemetry-instrument` starts."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return nothing: engines are patched when they are imported, if they ever are."""
        return ()

    def _instrument(self, **_: Any) -> None:
        instrument()

    def _uninstrument(self, **_: Any) -> None:
        uninstrument()
