"""Errors of ours inside the public calls: swallowed, counted and logged once, raised in tests.

Called where an exception is caught: on the hot path a `with` block of the guard would cost about as much as a record.
"""

from __future__ import annotations

from tailspan.guard import Guard

_GUARD = Guard("api")


def swallow(error: Exception) -> None:
    """Hand an error to the guard; call it inside the `except` block. Raises the error with TAILSPAN_STRICT=1."""
    if not _GUARD.__exit__(type(error), error, error.__traceback__):
        raise error
