"""What of an engine is tested, and what is not: the table of docs/SUPPORT.md, which `tailspan doctor` prints too."""

from __future__ import annotations

from typing import Final, NamedTuple

TESTED: Final = "tested"
"""The test suite runs it with the real engine."""
NOT_TESTED: Final = "not tested"
"""Expected to work; nothing here has run it."""
AS_A_WHOLE: Final = "without stages"
"""Recorded as one request or stage, without the parts of it."""
NOT_TRACED: Final = "not traced"
"""Left out on purpose: it counts in the steps only."""
STATES: Final = (TESTED, AS_A_WHOLE, NOT_TESTED, NOT_TRACED)


class Supported(NamedTuple):
    """A layout or feature of an engine, its state, and what to know about it (may be empty)."""

    what: str
    state: str
    note: str = ""
