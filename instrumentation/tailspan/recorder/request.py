"""One user request while it is in the worker: the handle that hooks pass around.

The request's key is its root span id: 64 random bits, unique across processes, so any process that knows the
traceparent can add records to it.
"""

from __future__ import annotations

from contextvars import ContextVar

from tailspan import attributes as attr
from tailspan.ids import format_traceparent, new_span_id, new_trace_id, parse_traceparent
from tailspan.recorder import process
from tailspan.recorder.layout import AttributeType, Kind
from tailspan.recorder.ring import RingWriter

MAX_UNRECORDED = 65536
_SIGN = 1 << 63
_OUTCOME_INDEX = {outcome: index for index, outcome in enumerate(attr.OUTCOMES)}


def signed(value: int) -> int:
    """Return a 64-bit pattern as the signed number that the record format stores."""
    return value - (1 << 64) if value >= _SIGN else value


class Request:
    """A request that has begun. All methods may be called from any thread; times are `now_ns()` values.

    A request that found no room (`recorded` is false) is left out as a whole: no method keeps anything.
    Attributes for hooks: `has_output` is set once the engine produced output, so that the next body chunk is the
    first one; `ended` once the request is over; `engine_request_id` whatever id the engine uses.
    """

    __slots__ = (
        "_text_busy_ns",
        "_text_ready_ns",
        "begin_ns",
        "ended",
        "engine_request_id",
        "flags",
        "has_output",
        "key",
        "recorded",
        "sent_first_chunk",
        "trace_id",
    )

    def __init__(self, trace_id: int, key: int, flags: int, begin_ns: int) -> None:
        """Use `begin_request`; this only fills in the fields."""
        self.trace_id = trace_id
        self.key = key
        self.flags = flags
        self.begin_ns = begin_ns
        self.recorded = True
        self.ended = False
        self.has_output = False
        self.sent_first_chunk = False
        self.engine_request_id = ""
        self._text_ready_ns = 0
        self._text_busy_ns = 0

    @property
    def traceparent(self) -> str:
        """W3C header value under which other processes or services continue this request."""
        return format_traceparent(self.trace_id, self.key, self.flags)

    def attribute(self, key: str, value: str | bool | int | float) -> None:
        """Set an attribute of the request span. Text that differs with every request belongs into `text`."""
        if not self.recorded:
            return
        ring = process.ring()
        name = ring.string(key)
        if isinstance(value, bool):
            ring.record(Kind.ATTRIBUTE, AttributeType.BOOL, name, self.key, int(value))
        elif isinstance(value, int):
            ring.record(Kind.ATTRIBUTE, AttributeType.INT, name, self.key, value)
        elif isinstance(value, float):
            ring.double(Kind.ATTRIBUTE, AttributeType.DOUBLE, name, self.key, value)
        else:
            ring.record(Kind.ATTRIBUTE, AttributeType.STRING, name, self.key, ring.string(value))

    def text(self, key: str, value: str) -> None:
        """Set a text attribute with many different values (a request id, an error message); cut at 240 bytes."""
        if not self.recorded:
            return
        ring = process.ring()
        ring.text(self.key, ring.string(key), value)

    def stage(self, stage: str, begin_ns: int, end_ns: int, busy_ns: int = -1) -> None:
        """Record a stage that one hook measured as a whole; several of one name are joined. busy -1: all of it."""
        if not self.recorded:
            return
        ring = process.ring()
        ring.record(Kind.STAGE, 0, ring.string(stage), self.key, begin_ns, end_ns, busy_ns)

    def text_ready(self, at_ns: int, busy_ns: int) -> None:
        """Note that a piece of text is ready after `busy_ns` of detokenisation; written once, when the request ends."""
        self._text_ready_ns = at_ns
        self._text_busy_ns += busy_ns

    def first_chunk(self, at_ns: int) -> None:
        """Record that the first body chunk with output was handed to the transport: the end of TTFT."""
        if not self.sent_first_chunk:
            self.sent_first_chunk = True
            if not self.recorded:
                return
            process.ring().record(Kind.FIRST_CHUNK, 0, 0, self.key, at_ns)

    def end(self, at_ns: int, outcome: str = "ok", error_type: str = "", http_status: int = 0) -> None:
        """End the request; a second call does nothing. `outcome` is one of `attributes.OUTCOMES`."""
        if self.ended:
            return
        self.ended = True
        if not self.recorded:
            process.unrecorded.discard(self.key)
            return
        ring = process.ring()
        if self._text_ready_ns:
            ring.record(Kind.TEXT_READY, 0, 0, self.key, self._text_ready_ns, self._text_busy_ns)
        error = ring.string(error_type) if error_type else 0
        ring.record(Kind.END, _OUTCOME_INDEX[outcome], error, self.key, at_ns, http_status)


current_request: ContextVar[Request | None] = ContextVar("tailspan_request", default=None)
"""The request that the running code works for, set by the ASGI layer and by offline calls."""


def begin_request(name: str, begin_ns: int, traceparent: str | None = None) -> Request:
    """Begin a request with the span name `name`, under the caller's W3C context when there is a valid one."""
    parent = parse_traceparent(traceparent) if traceparent else None
    trace_id, parent_id, flags = parent if parent is not None else (new_trace_id(), 0, 1)
    request = Request(trace_id, new_span_id(), flags, begin_ns)
    ring: RingWriter = process.ring()
    request.recorded = ring.takes_request()
    if not request.recorded:
        if len(process.unrecorded) >= MAX_UNRECORDED:  # requests that nobody ends
            process.unrecorded.clear()
        process.unrecorded.add(request.key)
        return request
    ring.record(
        Kind.BEGIN, 0, ring.string(name), request.key,
        begin_ns, signed(trace_id >> 64), signed(trace_id & (1 << 64) - 1), signed(parent_id), flags,
    )  # fmt: skip
    return request
