"""The slowest requests, each with the stage that took most of its time.

In: a client, a window, filters, how many. Out: `SlowRequest` records, a table, JSON, CSV.
JSON, stable: `window`, `filters`, `requests` [{every column of query `slowest`}]; CSV: the same columns.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tailspan_queries import units
from tailspan_queries.client import Client
from tailspan_queries.console import PLAIN_WIDTH, STAGE_STYLES
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.records import STATUS_ERROR
from tailspan_queries.times import Window, clock, datetime_ns

if TYPE_CHECKING:
    from rich.console import RenderableType

TRACE_ID = 32
SHORT_ID = 12


@dataclass(frozen=True, slots=True)
class SlowRequest:
    """One request; the names are the columns of query `slowest`."""

    trace_id: str
    span_id: str
    request_id: str
    start: datetime
    service: str
    instance: str
    model: str
    e2e_ns: int
    ttft_ns: int | None
    input_tokens: int
    output_tokens: int
    status_code: int
    dominant_stage: str
    dominant_ns: int
    dominant_ratio: float


def slowest_requests(client: Client, window: Window, filters: Filters = ALL, limit: int = 10) -> list[SlowRequest]:
    """Return the slowest requests of a window, the slowest first."""
    parameters = {**window.parameters, **filters.parameters, "limit": limit}
    return [SlowRequest(**row) for row in client.run("slowest", parameters).records()]


def render_slowest(requests: list[SlowRequest], width: int = PLAIN_WIDTH) -> RenderableType:
    """Return the requests as a table; the trace id, or as much of it as fits, is what `tailspan trace` takes."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, header_style="bold")
    # Only the model gives way when the table is too wide: half a trace id is of no use.
    table.add_column("trace", no_wrap=True, min_width=TRACE_ID if width >= PLAIN_WIDTH else SHORT_ID)
    table.add_column("began (UTC)", no_wrap=True, min_width=14)
    for title in ("e2e", "TTFT", "in", "out"):
        table.add_column(title, justify="right", no_wrap=True, min_width=7 if title in ("e2e", "TTFT") else 3)
    table.add_column("slow in", no_wrap=True, min_width=12)
    table.add_column("", justify="right", no_wrap=True, min_width=4)
    table.add_column("model", no_wrap=True, overflow="ellipsis")
    for request in requests:
        failed = request.status_code == STATUS_ERROR
        table.add_row(
            request.trace_id if width >= PLAIN_WIDTH else request.trace_id[:SHORT_ID],
            clock(datetime_ns(request.start))[5:],
            Text(units.duration(request.e2e_ns), style="bold red" if failed else "bold"),
            units.duration(request.ttft_ns),
            units.count(request.input_tokens),
            units.count(request.output_tokens),
            Text(request.dominant_stage, style=STAGE_STYLES.get(request.dominant_stage, "white")),
            units.percent(request.dominant_ratio, 0),
            Text("failed" if failed else request.model, style="red" if failed else "dim"),
        )
    return table


def slowest_json(window: Window, filters: Filters, requests: list[SlowRequest]) -> dict[str, Any]:
    """Return the list as the module says."""
    return {
        "window": window.as_json(),
        "filters": filters.parameters,
        "requests": [asdict(request) for request in requests],
    }


def slowest_csv(requests: list[SlowRequest]) -> tuple[list[str], list[list[Any]]]:
    """Return header and lines of the CSV form."""
    names = [field.name for field in fields(SlowRequest)]
    return names, [[getattr(request, name) for name in names] for request in requests]
