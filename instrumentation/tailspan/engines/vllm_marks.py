"""How the engine core knows whose a request is: a mark in its `trace_headers`, the one field that travels everywhere.

`EngineCoreRequest.trace_headers` crosses processes to `Request.trace_headers`, and from there with every output back
to the API process. So that outputs do not get heavier, the engine core takes the mark out, and all headers with it
where vLLM itself does not trace.

Where callers are told their times, the first output of a request brings those of its queue back the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailspan.recorder import Request

_KEY, _TIMES = "tailspan", "tailspan-times"


class Headers(dict[str, str]):
    """Trace headers that, in the process that made them, still know what they were made for."""

    __slots__ = ("call",)

    call: Any


def mark(request: Request, call: Any, given: Mapping[str, str] | None) -> Headers:
    """Return the headers of a sequence that the engine core shall record, with those that vLLM itself set."""
    marked = Headers(given or {})
    marked[_KEY] = f"{request.key:016x}"
    marked.call = call
    return marked


def call_of(headers: Mapping[str, str] | None) -> Any:
    """Return what `mark` was given in this process, None for other headers."""
    return headers.call if isinstance(headers, Headers) else None


def add_times(request: Any, queued_ns: int, joined_ns: int) -> None:
    """Let the next outputs of a vLLM `Request` tell when its queue began and ended."""
    request.trace_headers = {**(request.trace_headers or {}), _TIMES: f"{queued_ns},{joined_ns}"}


def drop_times(request: Any) -> None:
    """The times are on their way: let outputs be light again."""
    request.trace_headers = {k: v for k, v in (request.trace_headers or {}).items() if k != _TIMES} or None


def times_of(headers: Mapping[str, str] | None) -> tuple[int, int] | None:
    """Return begin and end of the queue, if an output tells them."""
    found = headers.get(_TIMES) if headers else None
    if found is None:
        return None
    queued, _, joined = found.partition(",")
    return int(queued), int(joined)


def take(request: Any, *, keep_headers: bool) -> int | None:
    """Return the key of a vLLM `Request`, None where there is no mark; take out the mark, or all headers with it."""
    found: Mapping[str, str] | None = request.trace_headers
    key = found.get(_KEY) if found else None
    if found is None or key is None:
        return None
    request.trace_headers = {name: value for name, value in found.items() if name != _KEY} if keep_headers else None
    return int(key, 16)
