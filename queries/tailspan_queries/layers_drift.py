"""Which parts of the model became slower or faster against a baseline window, and which changes are only noise.

In: a client, two windows, filters, what a line is about. Out: `DriftReport`, a table, JSON, CSV.
JSON, stable: `window`, `baseline`, `filters`, `by`, `phase`, `rows` [{every column of query `layers_drift` and
`drifted`}], `diagnosis`; CSV: the same columns. How like is compared with like is in the header of that query.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from tailspan.errors import UserError
from tailspan_queries import units
from tailspan_queries.breakdown import UNKNOWN, headline, new_table, plural
from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.layers import EVERY_LINE, part_name
from tailspan_queries.layers_view import TITLES, change
from tailspan_queries.times import Window, clock, parse_range

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

FALSE_ALARMS = 0.05
"""Chance that a report of windows that do not differ shows any drift: divided among its lines (Bonferroni)."""
LEAST_CHANGE = 0.02
"""A change that is smaller is none worth showing, however sure it is."""


@dataclass(frozen=True, slots=True)
class Drift:
    """One line of the report; the names are the columns of query `layers_drift`."""

    model: str
    layer: int | None
    kind: str
    kept_count: int
    baseline_count: int
    p50_ns: float
    baseline_p50_ns: float
    blocks: int
    baseline_blocks: int
    ratio: float
    ratio_low: float | None
    ratio_high: float | None
    p_value: float | None
    lines: int


@dataclass(frozen=True, slots=True)
class DriftReport:
    """The parts of the model in a window against a baseline, the largest change first."""

    window: Window
    baseline: Window
    filters: Filters
    by: str
    phase: str
    rows: tuple[Drift, ...]

    def drifted(self, row: Drift) -> bool:
        """Whether a line changed, and not by chance alone."""
        sure = row.p_value is not None and row.p_value * row.lines < FALSE_ALARMS
        return sure and abs(row.ratio - 1) >= LEAST_CHANGE


def parse_baseline(text: str, now_ns: int) -> Window:
    """Read the option `--baseline`.

    Raises: UserError as `parse_range` says.
    """
    return parse_range("--baseline", text, now_ns)


def drift_report(
    client: Client,
    window: Window,
    baseline: Window,
    filters: Filters = ALL,
    by: str = "kind",
    phase: str = "all",
    limit: int = EVERY_LINE,
) -> DriftReport:
    """Ask what changed against the baseline.

    Raises: UserError if the windows overlap.
    """
    if baseline.since_ns < window.until_ns and window.since_ns < baseline.until_ns:
        raise UserError("the baseline overlaps the window", "End the earlier one where the later one begins")
    parameters = {
        **window.parameters,
        **{f"baseline_{name}": value for name, value in baseline.parameters.items()},
        **filters.parameters,
        "by": by,
        "phase": phase,
        "limit": limit,
    }
    rows = tuple(Drift(**row) for row in client.run("layers_drift", parameters).records())
    return DriftReport(window, baseline, filters, by, phase, rows)


def render_drift(report: DriftReport) -> RenderableType:
    """Return the report as a table with the diagnosis under it."""
    from rich.console import Group
    from rich.text import Text

    before = f"{clock(report.baseline.since_ns)} to {clock(report.baseline.until_ns)} UTC"
    amount = plural(max(row.kept_count for row in report.rows), "sampled step")
    return Group(
        Text(headline(amount, report.window, report.filters), style="bold"),
        Text(f"against {before}; steps of the same phase, batch size and number of prompt tokens"),
        Text(),
        drift_table(report, several=len({row.model for row in report.rows}) > 1),
        Text(),
        Text(diagnose(report), style="bold"),
    )


def drift_table(report: DriftReport, *, several: bool) -> Table:
    """Return a line for each part."""
    table = new_table(TITLES[report.by], "steps", "before", "p50", "now", "change", "95 % interval", "")
    for row in report.rows:
        interval = units.ABSENT
        if row.ratio_low is not None and row.ratio_high is not None:
            interval = f"{change(row.ratio_low - 1)} to {change(row.ratio_high - 1)}"
        name = part_name(report.by, row.layer, row.kind)
        table.add_row(
            f"{row.model or UNKNOWN} {name}" if several else name,
            units.count(row.kept_count),
            units.count(row.baseline_count),
            units.duration(row.baseline_p50_ns),
            units.duration(row.p50_ns),
            change(row.ratio - 1),
            interval,
            verdict(report, row),
        )
    return table


def verdict(report: DriftReport, row: Drift) -> str:
    """Return what a line's numbers mean."""
    if row.p_value is None:
        return "too few"
    if report.drifted(row):
        return "slower" if row.ratio > 1 else "faster"
    return ""


def diagnose(report: DriftReport) -> str:
    """Return one sentence about what changed; empty without lines."""
    if not report.rows:
        return ""
    found = [row for row in report.rows if report.drifted(row)]
    if not found and all(row.p_value is None for row in report.rows):
        return "too few sampled steps to tell a change from noise: widen the windows."
    if not found:
        return "no part changed beyond noise."
    named = ", ".join(f"{part_name(report.by, row.layer, row.kind)} {change(row.ratio - 1)}" for row in found[:5])
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return f"{len(found)} of {report.rows[0].lines} lines changed beyond noise: {named}{more}."


def drift_json(report: DriftReport) -> dict[str, Any]:
    """Return the report as the module says."""
    return {
        "window": report.window.as_json(),
        "baseline": report.baseline.as_json(),
        "filters": report.filters.parameters,
        "by": report.by,
        "phase": report.phase,
        "rows": [{**asdict(row), "drifted": report.drifted(row)} for row in report.rows],
        "diagnosis": diagnose(report),
    }


def drift_csv(report: DriftReport) -> tuple[list[str], list[list[Any]]]:
    """Return header and lines of the CSV form."""
    names = [field.name for field in fields(Drift)]
    return [*names, "drifted"], [[*(getattr(row, name) for name in names), report.drifted(row)] for row in report.rows]
