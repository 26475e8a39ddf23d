"""What the parts of the model are of the end-to-end time of requests, and what making some of them faster would gain.

In: a client, a window, filters, what a line is about, speed-ups. Out: `ContributionReport`, a table, JSON, CSV.
JSON, stable: `window`, `filters`, `by`, `requests`, `kept_requests`, `tail_requests`, `rows` [{every column of query
`layers_contribution`}], `speedups` [{part, factor}], `prediction` {mean_ns, predicted_mean_ns, mean_change_ratio,
tail_mean_ns, predicted_tail_mean_ns, tail_change_ratio} or null, `launched_ratio`, `diagnosis`, `cautions`.
CSV: the columns of that query, whose header says what each line means.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailspan_queries import units
from tailspan_queries.breakdown import few_requests
from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.layers_records import Contribution, ContributionReport, Speedup
from tailspan_queries.layers_speedup import predict, prediction_text
from tailspan_queries.times import Window

FIRST_ORDER = (
    "First order: steps shrink by what the parts save. Not in it: shorter steps drain the queue faster, so that under "
    "load more is gained; steps at the pace of their launches gain nothing."
)
COVERED = 0.9
"""Share of the steps of prefills and decodes that must be stored."""
LAUNCH_MATTERS = 0.1


def contribution_report(
    client: Client, window: Window, filters: Filters = ALL, by: str = "kind", speedups: Sequence[Speedup] = ()
) -> ContributionReport:
    """Ask what end-to-end time consists of, and predict it with some parts faster.

    Raises: UserError if a speed-up names a part that no sampled step has.
    """
    parameters = {**window.parameters, **filters.parameters}
    rows = ask(client, parameters, by)
    report = ContributionReport(window, filters, by, rows, tuple(speedups))
    if report.whole is None or not report.parts:
        return report
    by_part = rows if by == "part" or not speedups else ask(client, parameters, "part")
    prediction = predict(by_part, report.whole, speedups) if speedups else None
    launched = launched_ratio(client, parameters)
    return ContributionReport(window, filters, by, rows, tuple(speedups), prediction, launched)


def ask(client: Client, parameters: dict[str, str], by: str) -> tuple[Contribution, ...]:
    """Run the query."""
    return tuple(Contribution(**row) for row in client.run("layers_contribution", {**parameters, "by": by}).records())


def launched_ratio(client: Client, parameters: dict[str, str]) -> float | None:
    """Return which share of busy time ran at the pace of launches, over the engines where that is known."""
    rows = [row for row in client.run("gpu", parameters).records() if row["launched_ratio"] is not None]
    launched = sum(row["launched_ratio"] * (row["busy_ns"] + row["idle_ns"]) for row in rows)
    return units.part(launched, sum(row["busy_ns"] for row in rows)) if rows else None


def diagnose(report: ContributionReport) -> str:
    """Return what the speed-ups would gain, or else what the largest part is of end-to-end time."""
    if report.prediction is not None:
        return prediction_text(report.prediction, report.speedups)
    if not report.parts:
        return ""
    model = sum(row.share_ratio for row in report.parts)
    tail = sum(row.tail_share_ratio for row in report.parts)
    rest = max((row for row in report.rows if row.what not in ("part", "request")), key=lambda row: row.mean_ns)
    return (
        f"the parts of the model are {units.percent_text(model)} of end-to-end time and "
        f"{units.percent_text(tail)} of that of the slowest 1 %; the largest of the rest is {rest_name(rest)}, "
        f"{units.percent_text(rest.share_ratio)}."
    )


def rest_name(row: Contribution) -> str:
    """Return the name of a line that is no part of the model."""
    named = {
        "unsampled": "device, not sampled",
        "host": "in steps beside the device",
        "untimed": "steps without device time",
        "between": "between steps",
    }
    return named.get(row.what, row.stage or row.what)


def cautions(report: ContributionReport) -> list[str]:
    """Return what a reader must know before trusting the numbers."""
    found = [FIRST_ORDER] if report.prediction else []
    found += few_requests([report.whole.kept_count]) if report.whole and report.parts else []
    if report.launched_ratio is not None and report.launched_ratio >= LAUNCH_MATTERS:
        found.append(
            f"{units.percent_text(report.launched_ratio)} of the device time ran at the pace of its launches, where "
            "a faster kernel changes nothing: see `tailspan gpu`"
        )
    whole = report.whole
    if whole and report.parts and whole.covered_ratio < COVERED:
        found.append(
            f"only {units.percent_text(whole.covered_ratio)} of the steps are stored (dropped, expired, not yet "
            "there): what they took is shown as between steps"
        )
    return found
