"""The latency report for people (rich); `latency_data` has its JSON and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tailspan_queries import units
from tailspan_queries.breakdown import headline, new_table, plural, requests_read
from tailspan_queries.diagnosis import needed, quantile_name
from tailspan_queries.goodput import METRICS, TITLES, Goodput
from tailspan_queries.latency import LatencyReport, LatencyRow, Percentiles
from tailspan_queries.records import QUANTILES

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

NAMES = ("mean", *QUANTILES, "max")
SHORT = {**TITLES, "e2e": "e2e"}
"""Names of the metrics where columns are many."""
LEAST_RATE = 0.001
"""Smaller rates are not written out."""
UNKNOWN_MEETS = dict.fromkeys(("itl", "tpot"), "only a request of fewer than two tokens meets its limit")
"""What has no gap between tokens cannot be slow in it."""
MOSTLY_IDLE = 0.5
"""Requests that cover less of the window than this share get their rates by the time that they cover as well."""


def render_latency(report: LatencyReport) -> RenderableType:
    """Return one table of percentiles and the rates in lines, or by group and over time a table of each."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(amount(report), style="bold"), Text(subtitle(report), style="dim"), Text()]
    if report.grouping.by or report.grouping.step_seconds:
        parts += [matrix(report), Text(), rates_table(report)]
        if report.slos:
            parts += [Text(), goodput_table(report)]
    else:
        row = report.rows[0]
        parts += [percentiles_table(row), Text(), *(Text(line) for line in rate_lines(row))]
        if row.goodput is not None:
            parts += [Text(), goodput_table(report), *(Text(line, style="bold") for line in verdict(row.goodput))]
    return Group(*parts, *(Text(f"! {line}", style="yellow") for line in cautions(report)))


def amount(report: LatencyReport) -> str:
    """Say how many requests of which time the report is about."""
    read = requests_read(report.kept_requests, report.requests, sampled=not report.sample.whole)
    return headline(read, report.window, report.filters)


def subtitle(report: LatencyReport) -> str:
    """Say how the percentiles were computed, and what buckets of time are."""
    over = "\ntimes are begins of buckets in UTC; rates are by second of the window in each"
    return report.statement + (over if report.grouping.step_seconds else "")


def percentiles_table(row: LatencyRow) -> Table:
    """Return a line for each metric."""
    titles = ("mean", *(quantile_name(quantile) for quantile in QUANTILES.values()), "max")
    table = new_table("", "count", *titles)
    for metric in METRICS:
        times: Percentiles = getattr(row, metric)
        table.add_row(TITLES[metric], units.count(times.count), *times_cells(row, times, NAMES, metric))
    return table


def times_cells(row: LatencyRow, times: Percentiles, names: Sequence[str], metric: str) -> list[Any]:
    """Return the times; percentiles that the requests are too few for are dimmed."""
    from rich.text import Text

    # A request has many gaps, so those of few requests may be many.
    stored = times.count if metric == "itl" else row.kept_requests
    weak = [name for name, quantile in QUANTILES.items() if stored < needed(quantile)]
    return [Text(units.duration(getattr(times, f"{name}_ns")), style="dim" if name in weak else "") for name in names]


def rate_lines(row: LatencyRow) -> list[str]:
    """Return rates and failures as sentences."""
    numbers = row.requests, row.input_tokens, row.output_tokens
    lines = [rates_text("by second of the window", *(row.rate(number) for number in numbers))]
    if 0 < row.active_seconds < MOSTLY_IDLE * row.seconds:
        rates = [number / row.active_seconds for number in numbers]
        seconds = units.duration(row.active_seconds * 1e9)
        lines.append(rates_text(f"in the {seconds} that they cover", *rates))
    lines.append(
        f"{units.percent(row.error_ratio)} failed ({row.error_count:,}), "
        f"{units.percent(row.aborted_ratio)} given up by the caller ({row.aborted_count:,})"
    )
    return lines


def rates_text(over: str, requests: float, input_tokens: float, output_tokens: float) -> str:
    """Return one sentence of rates."""
    return (
        f"{rate(requests)} requests/s, {rate(input_tokens)} prompt tokens/s, "
        f"{rate(output_tokens)} generated tokens/s {over}"
    )


def rate(number: float) -> str:
    """Return a rate with three significant digits, below 1 with two."""
    if 0 < number < LEAST_RATE:
        return f"<{LEAST_RATE:g}"
    if 0 < number < 1:
        return f"{number:.2g}"
    return units.significant(number) if 0 < number < 10_000 else units.count(number)


def matrix(report: LatencyReport) -> Table:
    """Return p50 and p99 of each metric, a line for each group or bucket of time."""
    titles = [f"{SHORT[metric]}\n{name}" for metric in METRICS for name in ("p50", "p99")]
    table = new_table(first_title(report), "requests", *titles)
    for row in report.rows:
        cells: list[Any] = []
        for metric in METRICS:
            cells += times_cells(row, getattr(row, metric), ("p50", "p99"), metric)
        table.add_row(report.grouping.line_name(row.key, row.bucket_ns), units.count(row.requests), *cells)
    return table


def rates_table(report: LatencyReport) -> Table:
    """Return rates and failures, a line for each group or bucket of time."""
    table = new_table(first_title(report), "requests/s", "prompt\ntokens/s", "output\ntokens/s", "failed", "given up")
    for row in report.rows:
        rates = (rate(row.rate(number)) for number in (row.requests, row.input_tokens, row.output_tokens))
        name = report.grouping.line_name(row.key, row.bucket_ns)
        table.add_row(name, *rates, units.percent(row.error_ratio), units.percent(row.aborted_ratio))
    return table


def goodput_table(report: LatencyReport) -> Table:
    """Return how many completed requests met all limits and each, a line for each group or bucket of time."""
    titles = [f"{SHORT[slo.metric]}\n≤ {units.duration(slo.limit_ns)}" for slo in report.slos]
    table = new_table(first_title(report), "completed", "goodput\nby second", "met\nall", *titles, "most\nmissed")
    for row in report.rows:
        found = row.goodput
        if found is None:
            continue
        shares = [units.percent(units.part(met.met, found.completed) if found.completed else None)
                  for met in found.limits]  # fmt: skip
        worst = SHORT[found.worst.slo.metric] if found.worst else units.ABSENT
        name = report.grouping.line_name(row.key, row.bucket_ns)
        table.add_row(
            name,
            units.count(found.completed),
            rate(row.rate(found.good)),
            units.percent(found.good_ratio),
            *shares,
            worst,
        )
    return table


def verdict(found: Goodput) -> list[str]:
    """Say which limit was missed most, and what meeting it would bring."""
    if not found.completed:
        return ["No request completed, so none met a limit."]
    worst = found.worst
    if worst is None:
        return ["Every completed request met every limit."]
    missed = found.completed - worst.met
    return [
        f"{TITLES[worst.slo.metric]} is missed most: by {missed:,} of {found.completed:,} completed requests, "
        f"{worst.missed_alone:,} of which missed nothing else."
    ]


def first_title(report: LatencyReport) -> str:
    """Return the head of the first column."""
    return "begin (UTC)" if report.grouping.step_seconds else report.grouping.title or "goodput"


def cautions(report: LatencyReport) -> list[str]:
    """Return what a reader must know before trusting the table."""
    found = []
    if report.group_count > report.groups:
        left_out = report.group_count - report.groups
        found.append(f"{plural(left_out, 'smaller group')} left out: --groups {report.group_count} lists all")
    unknown = "what is not known meets no limit"
    found += [
        f"{TITLES[slo.metric]} is known of no request, and {UNKNOWN_MEETS.get(slo.metric, unknown)}"
        for slo in report.slos
        if report.rows and not any(getattr(row, slo.metric).count for row in report.rows)
    ]
    if small := sum(1 for row in report.rows if row.kept_requests < needed(0.99)):
        lines = plural(len(report.rows), "line")
        found.append(f"{small} of {lines} rest on fewer than {needed(0.99)} stored requests: p99 is the slowest")
    return found
