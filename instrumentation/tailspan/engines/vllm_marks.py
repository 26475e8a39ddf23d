"""How the engine core knows whose a request is: a mark in its `trace_headers`, the one field that travels everywhere.

`EngineCoreRequest.trace_headers` crosses processes to `Request.trace_headers`, and from there with every output back
to the API process. So that outputs do not get heavier, the engine core takes the mark out, and all headers with it
where vLLM itself does not trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailspan.recorder import Request

_KEY = "tailspan"


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


def take(request: Any, *, keep_headers: bool) -> int | None:
    """Return the key of a vLLM `Request`, None where there is no mark; take out the mark, or all headers with it."""
    found: Mapping[str, str] | None = request.trace_headers
    key = found.get(_KEY) if found else None
    if found is None or key is None:
        return None
    request.trace_headers = {name: value for name, value in found.items() if name != _KEY} if keep_headers else None
    return int(key, 16)
