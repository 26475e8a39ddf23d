"""How much the prefills of other requests slowed decodes.

In: a client, a window, filters, what a line is about. Out: `Interference` records, a table, JSON, CSV.
JSON, stable: `window`, `filters`, `by`, `rows` [{every column of query `interference`}], `diagnosis`, `cautions`;
CSV: the same columns. What the numbers assume is in the header of that query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from tailspan_queries import units
from tailspan_queries.breakdown import NARROW, TITLES, few_requests, headline, key_text, look_at, new_table, plural
from tailspan_queries.client import Client
from tailspan_queries.console import PLAIN_WIDTH
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.times import Window

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

LEGEND = (
    "mixed: share of decode in steps that also computed others' prompts; "
    "extra: what these cost beyond the median step without, same engine and batch size"
)
NEGLIGIBLE = 0.02
"""Share of the decode time below which interference is not worth a change."""
COVERED = 0.9
"""Share of the decode time that the stored steps must cover."""
FEW_STEPS = 20
"""Steps without prefill that a median should rest on."""


@dataclass(frozen=True, slots=True)
class Interference:
    """One line of the report; the names are the columns of query `interference`."""

    key: str
    requests: int
    kept_count: int
    tokens: int
    decode_ns: float
    mixed_ns: float
    mixed_ratio: float
    prefill_tokens: float
    extra_ns: float | None
    extra_ratio: float | None
    extra_per_token_ns: float | None
    extra_p50_ns: float | None
    extra_p95_ns: float | None
    extra_p99_ns: float | None
    extra_max_ns: float | None
    covered_ratio: float
    mixed_steps: int
    pure_steps: int
    mixed_itl_p50_ns: float | None
    mixed_itl_p95_ns: float | None
    mixed_itl_p99_ns: float | None
    pure_itl_p50_ns: float | None
    pure_itl_p95_ns: float | None
    pure_itl_p99_ns: float | None
    worst_trace_id: str


@dataclass(frozen=True, slots=True)
class InterferenceReport:
    """The lines of a window, the most slowed first; minutes in the order of time."""

    window: Window
    filters: Filters
    by: str
    rows: tuple[Interference, ...]


def interference_report(
    client: Client, window: Window, filters: Filters = ALL, by: str = "model", limit: int = 1440
) -> InterferenceReport:
    """Ask how much the prefills of other requests slowed the decodes that began in a window."""
    parameters = {**window.parameters, **filters.parameters, "by": by, "limit": limit}
    rows = tuple(Interference(**row) for row in client.run("interference", parameters).records())
    return InterferenceReport(window, filters, by, rows)


def render_interference(report: InterferenceReport, width: int = PLAIN_WIDTH) -> RenderableType:
    """Return the report as tables with the diagnosis under them."""
    from rich.console import Group
    from rich.text import Text

    amount = plural(sum(row.requests for row in report.rows), "decode")
    parts: list[RenderableType] = [
        Text(headline(amount, report.window, report.filters), style="bold"),
        Text(LEGEND),
        Text(),
    ]
    if report.by == "request":
        parts.append(request_table(report, width))
    else:
        parts += [extra_table(report, width), Text(), itl_table(report, width)]
    if worst := most_slowed(report):
        parts += [Text(), Text(diagnose(report), style="bold")]
        parts += [Text(look_at(worst.worst_trace_id))] if report.by != "request" else []
    return Group(*parts, *(Text(f"! {line}", style="yellow") for line in cautions(report)))


def extra_table(report: InterferenceReport, width: int) -> Table:
    """Return how much longer decodes took."""
    by = report.by
    wide = width >= NARROW
    titles = ["decodes", "mixed", "extra p50", "p95", "p99", *(["max"] if wide else []), "a token", "of decode"]
    table = new_table(TITLES.get(by, by), *titles)
    for row in report.rows:
        extra = [row.extra_p50_ns, row.extra_p95_ns, row.extra_p99_ns, *([row.extra_max_ns] if wide else [])]
        table.add_row(
            key_text(by, row.key, width),
            units.count(row.requests),
            units.percent(row.mixed_ratio),
            *(units.duration(value) for value in (*extra, row.extra_per_token_ns)),
            units.percent(row.extra_ratio),
        )
    return table


def itl_table(report: InterferenceReport, width: int) -> Table:
    """Return the gaps between tokens of steps with and without prefill."""
    by = report.by
    table = new_table(TITLES.get(by, by), "ITL in steps", "steps", "p50", "p95", "p99")
    for row in report.rows:
        pure = (row.pure_itl_p50_ns, row.pure_itl_p95_ns, row.pure_itl_p99_ns)
        mixed = (row.mixed_itl_p50_ns, row.mixed_itl_p95_ns, row.mixed_itl_p99_ns)
        for key, name, steps, times in (
            (key_text(by, row.key, width), "that decode", row.pure_steps, pure),
            ("", "with prefill", row.mixed_steps, mixed),
        ):
            table.add_row(key, name, units.count(steps), *(units.duration(value) for value in times))
    return table


def request_table(report: InterferenceReport, width: int) -> Table:
    """Return a line for each request."""
    table = new_table("trace", "extra", "of decode", "a token", "decode", "tokens", "mixed", "prompt tokens")
    for row in report.rows:
        table.add_row(
            key_text("request", row.key, width),
            units.duration(row.extra_ns),
            units.percent(row.extra_ratio),
            units.duration(row.extra_per_token_ns),
            units.duration(row.decode_ns),
            units.count(row.tokens),
            units.percent(row.mixed_ratio),
            units.count(row.prefill_tokens),
        )
    return table


def most_slowed(report: InterferenceReport) -> Interference | None:
    """Return the line with the largest extra; None if none is known."""
    known = [row for row in report.rows if row.extra_ratio is not None]
    return max(known, key=lambda row: row.extra_ns or 0, default=None)


def diagnose(report: InterferenceReport) -> str:
    """Return one sentence about the line with the largest extra; empty without one."""
    worst = most_slowed(report)
    if worst is None:
        return ""
    ratio = worst.extra_ratio or 0.0
    name = f"{report.by} {key_text(report.by, worst.key, PLAIN_WIDTH)}: " if report.by != "all" else ""
    if ratio < NEGLIGIBLE:
        return f"{name}prefills of other requests are {units.percent_text(ratio, 1)} of decode time; look elsewhere."
    sentence = f"{name}prefills of other requests are {units.percent_text(ratio, 1)} of decode time"
    if report.by != "request":
        sentence += f", {units.duration(worst.extra_p99_ns)} a request at p99"
    return (
        f"{sentence}. Smaller prefill chunks (--max-num-batched-tokens, --long-prefill-token-threshold) even out ITL "
        "at the price of TTFT; prefill on workers of its own (disaggregated) takes it away."
    )


def cautions(report: InterferenceReport) -> list[str]:
    """Return what a reader must know before trusting the numbers."""
    found = [] if report.by in ("request", "minute") else few_requests([row.requests for row in report.rows])
    if any(row.extra_ns is None and row.mixed_ns > 0 for row in report.rows):
        found.append("an engine made no step without prefill: there is nothing to compare its mixed steps with")
    if report.by in ("model", "all") and any(0 < row.pure_steps < FEW_STEPS for row in report.rows):
        found.append(f"fewer than {FEW_STEPS} steps without prefill: the medians rest on few steps")
    covered = min((row.covered_ratio for row in report.rows), default=1.0)
    if covered < COVERED:
        found.append(
            f"the stored steps cover only {units.percent_text(covered)} of decode time: spans of steps are missing "
            "(dropped, expired, not yet there), so that extra is too small; `tailspan stages` tells of drops"
        )
    return found


def interference_json(report: InterferenceReport) -> dict[str, Any]:
    """Return the report as the module says."""
    return {
        "window": report.window.as_json(),
        "filters": report.filters.parameters,
        "by": report.by,
        "rows": [asdict(row) for row in report.rows],
        "diagnosis": diagnose(report),
        "cautions": cautions(report),
    }


def interference_csv(rows: Sequence[Interference]) -> tuple[list[str], list[list[Any]]]:
    """Return header and lines of the CSV form."""
    names = [field.name for field in fields(Interference)]
    return names, [[getattr(row, name) for name in names] for row in rows]
