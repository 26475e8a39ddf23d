"""One user request while it is in the worker: the handle that hooks pass around.

The request's key is its root span id: 64 random bits, unique across processes, so any process that knows the
traceparent can add records to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from tailspan import attributes as attr
from tailspan.ids import format_traceparent, parse_traceparent
from tailspan.recorder import layout, process
from tailspan.recorder.layout import AttributeType, Kind
from tailspan.recorder.ring import RingWriter

MAX_UNRECORDED = 65536
_LOW_64 = (1 << 64) - 1
# Plain numbers: looking a member up in an enumeration costs a good part of a record.
_ATTRIBUTE, _ATTRIBUTES = int(Kind.ATTRIBUTE), int(Kind.ATTRIBUTES)
_STAGE, _END = int(Kind.STAGE), int(Kind.END)
_INT, _DOUBLE = int(AttributeType.INT), int(AttributeType.DOUBLE)
_BOOL, _STRING = int(AttributeType.BOOL), int(AttributeType.STRING)
_OUTCOME_INDEX = {outcome: index for index, outcome in enumerate(attr.OUTCOMES)}


class AttributeSet:
    """Attributes that many requests share, encoded once; make one for each combination of values and keep it."""

    __slots__ = ("encoded",)

    def __init__(self, attributes: Mapping[str, str | bool | int | float]) -> None:
        """Encode the attributes; at most some 900 bytes of JSON."""
        self.encoded = json.dumps(dict(attributes), ensure_ascii=False, separators=(",", ":"))


class Request:
    """A request that has begun. All methods may be called from any thread; times are `now_ns()` values.

    A request that found no room (`recorded` is false) is left out as a whole: no method keeps anything.
    Attributes for hooks: `has_output` is set once the engine produced output, so that the next body chunk is the
    first one; `ended` once the request is over; `engine_request_id` whatever id the engine uses.
    """

    # Defaults of the class, so that a request that begins sets five fields and not a dozen.
    recorded = True
    ended = False
    has_output = False
    engine_request_id = ""
    timings: Any = None
    """The engine's times, where callers are told them."""
    _first_chunk_ns = 0
    _text_ready_ns = 0
    _text_busy_ns = 0

    def __init__(self, trace_high: int, trace_low: int, key: int, flags: int, begin_ns: int) -> None:
        """Use `begin_request`; this only fills in the fields."""
        self._trace_high = trace_high
        self._trace_low = trace_low
        self.key = key
        self.flags = flags
        self.begin_ns = begin_ns

    @property
    def trace_id(self) -> int:
        """The 128-bit id of the trace."""
        return self._trace_high << 64 | self._trace_low

    @property
    def traceparent(self) -> str:
        """W3C header value under which other processes or services continue this request."""
        return format_traceparent(self.trace_id, self.key, self.flags)

    def attribute(self, key: str, value: str | bool | int | float) -> None:
        """Set an attribute of the request span. Text that differs with every request belongs into `text`."""
        if not self.recorded:
            return
        ring = process.ring()
        if isinstance(value, str):
            ring.note(_ATTRIBUTE, _STRING, key, self.key, ring.string(value))
        elif isinstance(value, float):
            ring.double(_ATTRIBUTE, _DOUBLE, ring.string(key), self.key, value)
        else:
            ring.note(_ATTRIBUTE, _BOOL if isinstance(value, bool) else _INT, key, self.key, int(value))

    def describe(self, attributes: AttributeSet, response_id: str = "") -> None:
        """Set several attributes at once, and `gen_ai.response.id`: one record if the id has at most 40 bytes."""
        if not self.recorded:
            return
        ring = process.ring()
        data = response_id.encode("utf-8", "replace")
        if data and len(data) <= layout.CHUNK_BYTES:
            ring.chunk(_ATTRIBUTES, layout.HAS_RESPONSE_ID, ring.string(attributes.encoded), self.key, data)
            return
        ring.note(_ATTRIBUTES, 0, attributes.encoded, self.key)
        if data:
            self.text(attr.GEN_AI_RESPONSE_ID, response_id)

    def text(self, key: str, value: str) -> None:
        """Set a text attribute with many different values (a request id, an error message); cut at 240 bytes."""
        if not self.recorded:
            return
        ring = process.ring()
        ring.text(self.key, ring.string(key), value)

    def stage(self, stage: str, begin_ns: int, end_ns: int, busy_ns: int = -1) -> None:
        """Record a stage that one hook measured as a whole; several of one name are joined. busy -1: all of it."""
        if self.recorded:
            process.ring().note(_STAGE, 0, stage, self.key, begin_ns, end_ns, busy_ns)

    def text_ready(self, at_ns: int, busy_ns: int) -> None:
        """Note that a piece of text is ready after `busy_ns` of detokenisation; recorded when the request ends."""
        self._text_ready_ns = at_ns
        self._text_busy_ns += busy_ns

    def first_chunk(self, at_ns: int) -> None:
        """Note that the first body chunk with output goes to the transport, the end of TTFT; recorded at the end."""
        if not self._first_chunk_ns:
            self._first_chunk_ns = at_ns

    @property
    def sent_first_chunk(self) -> bool:
        """Whether `first_chunk` was called."""
        return self._first_chunk_ns != 0

    def end(self, at_ns: int, outcome: str = "ok", error_type: str = "", http_status: int = 0) -> None:
        """End the request; a second call does nothing. `outcome` is one of `attributes.OUTCOMES`."""
        if self.ended:
            return
        self.ended = True
        if not self.recorded:
            process.unrecorded.discard(self.key)
            return
        ring = process.ring()
        ring.record(
            _END, _OUTCOME_INDEX[outcome], ring.string(error_type) if error_type else 0, self.key,
            at_ns, http_status, self._first_chunk_ns, self._text_ready_ns, self._text_busy_ns,
        )  # fmt: skip


current_request: ContextVar[Request | None] = ContextVar("tailspan_request", default=None)
"""The request that the running code works for, set by the ASGI layer and by offline calls."""


def begin_request(
    name: str, begin_ns: int, traceparent: str | None = None, attributes: AttributeSet | None = None
) -> Request:
    """Begin a request with the span name `name`, under the caller's W3C context when there is a valid one."""
    ring: RingWriter = process.ring()
    high, low, key = ring.new_ids()
    parent_id, flags = 0, 1
    parent = parse_traceparent(traceparent) if traceparent else None
    if parent is not None:
        trace_id, parent_id, flags = parent
        high, low = trace_id >> 64, trace_id & _LOW_64
    request = Request(high, low, key, flags, begin_ns)
    if not ring.begin(name, attributes.encoded if attributes else "", key, begin_ns, high, low, parent_id, flags):
        request.recorded = False
        if len(process.unrecorded) >= MAX_UNRECORDED:  # requests that nobody ends
            process.unrecorded.clear()
        process.unrecorded.add(key)
    return request
