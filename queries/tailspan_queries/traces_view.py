"""One trace as a waterfall for people (rich), as JSON, and as CSV.

JSON, stable: `trace_id`, `start`, `duration_ns`, `truncated`, `requests` [{span_id, request_id, service, instance,
model, start, e2e_ns, ttft_ns, input_tokens, output_tokens, status_code, outcome, stages {name: wall ns},
unattributed_ns, unattributed_ratio, gaps [{offset_ns, duration_ns}]}], `spans` [{every column of query `trace`, plus
offset_ns and steps {every column of query `trace_steps` after span_id} or null}], `slow_steps` [{every column of query
`trace_slow_steps`}].
CSV: one line a span, the columns of query `trace` after offset_ns.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from tailspan import attributes
from tailspan_queries import units, waterfall
from tailspan_queries.console import PLAIN_WIDTH, STAGE_STYLES
from tailspan_queries.records import STATUS_ERROR
from tailspan_queries.slow_steps import StepSummary, step_tables
from tailspan_queries.span_detail import detail, fold
from tailspan_queries.times import clock, iso
from tailspan_queries.trace_spans import SpanRow
from tailspan_queries.traces import Ledger, TraceReport, tree

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

NAME_WIDTH = 15
NUMBER_WIDTH = 19
"""Columns that wall time, share and the spaces between take."""
WIDEST_DETAIL = 60
WORTH_NAMING = 0.001
"""Share of a request from which a stage is named in the line under the waterfall."""
GAP_FILL = "░"
THIN = "▏"


def render_trace(report: TraceReport, width: int = PLAIN_WIDTH) -> RenderableType:
    """Return the waterfall of a trace with a line of shares for each request under it."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(headline(report), style="bold"), *subtitles(report), Text()]
    parts += [waterfall_table(report, width), Text()]
    parts += [share_line(ledger, numbered=len(report.requests) > 1) for ledger in report.requests]
    parts += step_tables(report)
    if report.truncated:
        parts.append(Text(f"! only the first {len(report.spans):,} spans are listed", style="yellow"))
    return Group(*parts)


def headline(report: TraceReport) -> str:
    """Say which trace this is, when it began and how long it took."""
    begin, end = report.interval
    spans = f"{len(report.spans):,} span{'' if len(report.spans) == 1 else 's'}"
    return f"trace {report.trace_id} · {clock(begin)} UTC · {units.duration(end - begin)} · {spans}"


def subtitles(report: TraceReport) -> list[RenderableType]:
    """Return a line for each request: its id, model, service and instance."""
    from rich.text import Text

    lines: list[RenderableType] = []
    for ledger in report.requests:
        span = ledger.request
        named = [("request", span.request_id), ("model", span.model), ("service", span.service)]
        named.append(("instance", span.instance))
        lines.append(Text(" · ".join(f"{name} {value}" for name, value in named if value), style="dim"))
    return lines


def waterfall_table(report: TraceReport, width: int) -> Table:
    """Return the table with one line a span and one for what no stage covers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = tree(report.spans)
    ledgers = {ledger.request.span_id: ledger for ledger in report.requests}
    name_width = min(max(NAME_WIDTH, *(2 * depth + len(span.name) for depth, span in rows)), width // 3)
    detail_width = min((width - name_width - NUMBER_WIDTH) // 2, WIDEST_DETAIL)
    axis_width = width - name_width - NUMBER_WIDTH - detail_width
    axis = report.interval
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("span", no_wrap=True, width=name_width)
    table.add_column(Text(axis_labels(axis, axis_width), style="dim"), no_wrap=True, width=axis_width)
    table.add_column("wall", justify="right", no_wrap=True, width=7)
    table.add_column("share", justify="right", no_wrap=True, width=6)
    table.add_column("", width=detail_width)
    shares = {
        stage.span_id: units.part(stage.duration_ns, ledger.request.duration_ns)
        for ledger in report.requests
        for stage in ledger.stages
    }
    pending: list[tuple[int, Ledger]] = []
    for depth, span in rows:
        while pending and depth <= pending[-1][0]:
            add_gap_row(table, *pending.pop(), axis, axis_width)
        add_span_row(table, depth, span, axis, axis_width, shares.get(span.span_id), report.steps.get(span.span_id))
        if ledger := ledgers.get(span.span_id):
            pending.append((depth, ledger))
    while pending:
        add_gap_row(table, *pending.pop(), axis, axis_width)
    return table


def add_span_row(
    table: Table,
    depth: int,
    span: SpanRow,
    axis: waterfall.Interval,
    axis_width: int,
    share: float | None,
    steps: StepSummary | None,
) -> None:
    """Add the line of a span: a bar for a stage, a rule for what encloses others."""
    from rich.text import Text

    style = STAGE_STYLES.get(span.stage or span.role, "white")
    is_request = span.role == attributes.ROLE_REQUEST
    bar = waterfall.line([span.interval], axis, axis_width, "─" if is_request else units.FULL, THIN)
    failed = span.status_code == STATUS_ERROR
    table.add_row(
        Text("  " * depth + span.name, style="bold red" if failed else style),
        Text(bar, style="bright_black" if is_request else style),
        units.duration(span.duration_ns),
        "" if share is None else units.percent(share),
        Text(fold(detail(span, steps), table.columns[-1].width or 0), style="red" if failed else "dim"),
    )


def add_gap_row(table: Table, depth: int, ledger: Ledger, axis: waterfall.Interval, axis_width: int) -> None:
    """Add the line that shows where no stage covers the request."""
    from rich.text import Text

    style = STAGE_STYLES[attributes.UNATTRIBUTED]
    table.add_row(
        Text("  " * (depth + 1) + attributes.UNATTRIBUTED, style=style),
        Text(waterfall.line(ledger.gaps, axis, axis_width, GAP_FILL, GAP_FILL), style=style),
        units.duration(ledger.unattributed_ns),
        units.percent(units.part(ledger.unattributed_ns, ledger.request.duration_ns)),
        Text(f"{len(ledger.gaps)} gap{'' if len(ledger.gaps) == 1 else 's'}" if ledger.gaps else "", style="dim"),
    )


def axis_labels(axis: waterfall.Interval, width: int) -> str:
    """Return the scale above the bars: zero, the middle, the end."""
    length = axis[1] - axis[0]
    end, middle = units.duration(length), units.duration(length / 2)
    left = "0".ljust(max(width // 2 - len(middle) // 2, 1)) + middle
    return left + end.rjust(max(width - len(left), 0))


def share_line(ledger: Ledger, *, numbered: bool) -> RenderableType:
    """Return one line with the stages of a request from `WORTH_NAMING` of its time on, the largest first."""
    from rich.text import Text

    line = Text()
    line.append(f"{ledger.request.request_id or ledger.request.span_id}: " if numbered else "", style="dim")
    totals = sorted(ledger.totals_ns.items(), key=lambda item: -item[1])
    shares = [(stage, units.part(wall_ns, ledger.request.duration_ns)) for stage, wall_ns in totals]
    for number, (stage, share) in enumerate(item for item in shares if abs(item[1]) >= WORTH_NAMING):
        line.append(" · " if number else "", style="dim")
        line.append(stage, style=STAGE_STYLES.get(stage, "white"))
        line.append(f" {units.percent(share)}", style="default")
    return line


def trace_json(report: TraceReport) -> dict[str, Any]:
    """Return the report as the module says."""
    begin, end = report.interval
    return {
        "trace_id": report.trace_id,
        "start": iso(begin),
        "duration_ns": end - begin,
        "truncated": report.truncated,
        "requests": [ledger_json(ledger) for ledger in report.requests],
        "spans": [
            {
                "offset_ns": span.start_ns - begin,
                **asdict(span),
                "steps": asdict(report.steps[span.span_id]) if span.span_id in report.steps else None,
            }
            for span in report.spans
        ],
        "slow_steps": [asdict(step) for step in report.slow_steps],
    }


def ledger_json(ledger: Ledger) -> dict[str, Any]:
    """Return one request as a JSON object."""
    span = ledger.request
    return {
        "span_id": span.span_id,
        "request_id": span.request_id,
        "service": span.service,
        "instance": span.instance,
        "model": span.model,
        "start": iso(span.start_ns),
        "e2e_ns": span.duration_ns,
        "ttft_ns": span.ttft_ns or None,
        "input_tokens": span.input_tokens,
        "output_tokens": span.output_tokens,
        "status_code": span.status_code,
        "outcome": span.attributes_string.get(attributes.OUTCOME, ""),
        "stages": {name: wall for name, wall in ledger.totals_ns.items() if name != attributes.UNATTRIBUTED},
        "unattributed_ns": ledger.unattributed_ns,
        "unattributed_ratio": units.part(ledger.unattributed_ns, span.duration_ns),
        "gaps": [{"offset_ns": left - span.start_ns, "duration_ns": right - left} for left, right in ledger.gaps],
    }


def trace_csv(report: TraceReport) -> tuple[list[str], list[list[Any]]]:
    """Return header and lines of the CSV form."""
    names = [field.name for field in fields(SpanRow)]
    begin, _ = report.interval
    lines = [[span.start_ns - begin, *(getattr(span, name) for name in names)] for span in report.spans]
    return ["offset_ns", *names], lines
