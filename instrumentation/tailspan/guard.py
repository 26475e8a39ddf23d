"""The one guard between tailspan and the engine: an error of ours never becomes an error of theirs.

In production an exception inside a guarded block is swallowed, counted, and logged the first time at each site. With
TAILSPAN_STRICT=1 (all tests) it is raised.
"""

from __future__ import annotations

import logging
import os
from types import TracebackType

logger = logging.getLogger("tailspan")

failures: dict[str, int] = {}
"""Swallowed errors by site, for `tailspan doctor`."""


class Guard:
    """A reusable `with` block for one place in the code; stateless, so threads and nesting are safe."""

    __slots__ = ("site",)

    def __init__(self, site: str) -> None:
        """Name the place for the log and the counter, for example `transformers.generate`."""
        self.site = site

    def __enter__(self) -> None:
        """Enter the guarded block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Swallow and count any ordinary exception; let KeyboardInterrupt, SystemExit and cancellation pass."""
        if error is None or not isinstance(error, Exception):
            return False
        count = failures.get(self.site, 0) + 1
        failures[self.site] = count
        if os.environ.get("TAILSPAN_STRICT") == "1":
            return False
        if count == 1:
            logger.warning("tailspan hook %s failed and is ignored from now on", self.site, exc_info=error)
        return True
