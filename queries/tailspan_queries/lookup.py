"""Which trace a user means: a trace id, the beginning of one, a `traceparent`, or a request id.

Errors: `UserError` when nothing fits, or more than one trace does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tailspan.errors import UserError
from tailspan_queries.client import Client
from tailspan_queries.times import Window, datetime_ns

ID_DIGITS = 32
SHORTEST_PREFIX = 6
LISTED = 5
_HEX = re.compile(r"[0-9a-f]{1,32}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class Found:
    """A trace and the window in which its spans began, which bounds the search for them."""

    trace_id: str
    window: Window


def find_trace(client: Client, text: str) -> Found:
    """Return the one trace that `text` names.

    Raises: UserError if there is none, more than one, or `text` is too short to tell.
    """
    wanted = text.strip()
    lower = wanted.lower()
    if match := _TRACEPARENT.fullmatch(lower):
        wanted = lower = match[1]
    is_hex = _HEX.fullmatch(lower) is not None
    prefix = lower if is_hex and len(lower) >= SHORTEST_PREFIX else ""
    if not wanted:
        raise UserError("the trace id is empty", "Give 32 hex digits, at least the first 6 of them, or a request id")
    rows = client.run(
        "trace_lookup",
        {
            # Without a prefix the range is empty: it begins after it ends.
            "first": prefix.ljust(ID_DIGITS, "0") if prefix else "f" * ID_DIGITS,
            "last": prefix.ljust(ID_DIGITS, "f") if prefix else "0" * ID_DIGITS,
            "request_id": wanted if len(prefix) < ID_DIGITS else "",
            "limit": LISTED + 1,
        },
    ).records()
    if not rows:
        raise missing(wanted, too_short=is_hex and not prefix)
    if len(rows) > 1:
        raise ambiguous(wanted, rows)
    row = rows[0]
    return Found(row["trace_id"], span_window(row))


def span_window(row: dict[str, Any]) -> Window:
    """Return the window of a lookup row; the driver cuts times to microseconds, so it is one wider at the end."""
    return Window(datetime_ns(row["start"]), datetime_ns(row["last_start"]) + 1000)


def missing(text: str, *, too_short: bool) -> UserError:
    """The error for an id that fits no trace."""
    if too_short:
        return UserError(
            f"{text!r} is too short for a trace id", f"Give at least {SHORTEST_PREFIX} of its {ID_DIGITS} hex digits"
        )
    return UserError(
        f"there is no trace or request {text!r}",
        "List some with `tailspan slowest`; spans arrive a few seconds after a request ends",
    )


def ambiguous(text: str, rows: list[dict[str, Any]]) -> UserError:
    """The error for an id that fits several traces; names some of them."""
    some = ", ".join(row["trace_id"] for row in rows[:LISTED])
    more = " and more" if len(rows) > LISTED else ""
    return UserError(f"{text!r} fits several traces: {some}{more}", "Give more digits of the one you mean")
