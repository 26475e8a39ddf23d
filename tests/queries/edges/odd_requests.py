"""Spans of a request whose every number and name can be odd.

Times are in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tailspan import attributes
from tailspan_queries.times import Window, datetime_ns
from tests.queries import traffic

MS = 1_000_000
SECOND = 1000 * MS
MINUTE = traffic.MINUTE_NS
HOUR = 60 * MINUTE
DAY = 24 * HOUR
FIRST_DAY_NS = 1_780_272_000_000_000_000
"""2026-06-01T00:00:00Z; each kind has the noon of a day from here on."""
Value = str | int | float | bool
Parts = Sequence[tuple[str, int, int]]
"""Stages as name, begin after that of the request, and wall time."""
USUAL: Parts = (("queue", 0, 20 * MS), ("prefill", 20 * MS, 30 * MS), ("decode", 50 * MS, 40 * MS))
HOSTILE = (
    "[red]markup[/red] [/] :smile:",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "line\nbreak\r\ttab",
    "quo\"te ' `tick` \\ back ; -- drop",
    "c1 \x9b31m bidi \u202egnp.exe\u2066",
    "\u540d\u524d \U0001f642 e\u0301\u200d",
    "x" * 5000,
    '\t=HYPERLINK("x";1)',
    "nan",
    "1e400",
    "",
)
"""Values as no one should send them."""
HOSTILE_KEY = "te'na\"nt\n\x1b[1m{x}[b]"
TENANT = "tenant"
_ids = count(1)


@dataclass(frozen=True, slots=True)
class Odd:
    """One kind of odd data."""

    name: str
    window: Window
    spans: Sequence[tuple[str, str, Span]] = ()
    requests: int = 0
    message: bytes = b""
    service: str = ""
    notes: Mapping[str, Value] = field(default_factory=dict)


def request(
    start_ns: int, e2e_ns: int = 100 * MS, parts: Parts = USUAL, keys: Mapping[str, Value] | None = None,
    *, service: str = "chat", instance: str = "worker-0", model: str = "small",
    stage_keys: Mapping[str, Value] | None = None, failed: bool = False, copies: int = 1,
) -> Iterator[tuple[str, str, Span]]:  # fmt: skip
    """Yield the spans of a request, `copies` times."""
    trace_id = (next(_ids) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128)).to_bytes(16, "big")
    root_id = trace_id[:8]
    common: dict[str, Value] = {attributes.GEN_AI_MODEL: model}
    own: dict[str, Value] = {
        attributes.ROLE: attributes.ROLE_REQUEST,
        attributes.GEN_AI_INPUT_TOKENS: 100,
        attributes.GEN_AI_OUTPUT_TOKENS: 5,
        attributes.OUTCOME: "ok",
        attributes.TTFT_NS: 50 * MS,
        **common,
        **(keys or {}),
    }
    covered = sum(wall for _, _, wall in parts)
    own.setdefault(attributes.UNATTRIBUTED_NS, max(e2e_ns - covered, 0))
    root = traffic.make_span(trace_id, root_id, b"", "POST", start_ns, e2e_ns, own)
    root.status.code = 2 if failed else 0
    weight = {key: value for key, value in own.items() if key == attributes.WEIGHT}
    stages = []
    for number, (name, begin, wall) in enumerate(parts, start=1):
        about: dict[str, Value] = {attributes.ROLE: attributes.ROLE_STAGE, attributes.STAGE: name, **common, **weight}
        about |= stage_keys or {}
        span_id = (int.from_bytes(root_id, "big") ^ number).to_bytes(8, "big")
        stages.append(traffic.make_span(trace_id, span_id, root_id, name, start_ns + begin, wall, about))
    for _ in range(copies):
        yield from ((service, instance, span) for span in (*stages, root))


def many(
    begin_ns: int, number: int, gap_ns: int = 20 * SECOND, *, vary: bool = True, **how: object
) -> list[tuple[str, str, Span]]:
    """Return the spans of so many requests, one each `gap_ns`; their decode differs unless they do not `vary`."""
    found: list[tuple[str, str, Span]] = []
    for index in range(number):
        extra = index * MS if vary else 0
        parts = (*USUAL[:2], ("decode", 50 * MS, 40 * MS + extra))
        found += request(begin_ns + index * gap_ns, 100 * MS + extra, **{"parts": parts, **how})  # type: ignore[arg-type]
    return found


def ns(text: str) -> int:
    """Return the nanoseconds since the epoch of a time in UTC."""
    return datetime_ns(datetime.fromisoformat(text))
