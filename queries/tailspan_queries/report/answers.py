"""Everything the page is made of: the reports of the other commands about one window.

In: a client, a window, filters. Out: `Answers`.
Window: widened to whole seconds, so that the commands on the page, which name it, ask the very same.
Time and memory are those of the commands; above their limits they read rollups and samples, and say so. Rows that
reach Python: percentiles of stages, `MAX_BUCKETS` buckets of time, parts of the model, `TRACES` traces, and the samples
that `tailspan regress` compares.
Errors: `UserError` as `client` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailspan_queries.client import Client
from tailspan_queries.different import DifferentReport, different_report
from tailspan_queries.empty import empty_note
from tailspan_queries.filters import Filters
from tailspan_queries.grouping import Grouping, buckets_of
from tailspan_queries.latency import LatencyReport, latency_report
from tailspan_queries.layers import LayerReport, layer_report
from tailspan_queries.optimizations import ledger_report
from tailspan_queries.optimizations_records import LedgerReport, Optimization
from tailspan_queries.optimizations_store import read
from tailspan_queries.records import StageReport
from tailspan_queries.regress import DAY_NS, Regression, previous_days, regress
from tailspan_queries.sampling import Sample
from tailspan_queries.slowest import SlowRequest, slowest_requests
from tailspan_queries.stages import stage_report
from tailspan_queries.tail import TailReport, tail_report
from tailspan_queries.times import NS_PER_SECOND, Window, datetime_ns
from tailspan_queries.traces import TraceReport, trace_report

TRACES = 5
"""Slowest requests that are drawn."""
MAX_BUCKETS = 180
"""Buckets of time that are drawn; of more days than that the last."""
STEPS = (60, 300, 900, 3600, 4 * 3600, 86_400)
"""Lengths of a bucket of time to choose from, s."""
VERSION = "service.version"


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A version of a service and when it answered; the names are columns of query `versions`. Times are ns."""

    service: str
    version: str
    requests: int
    first_start_ns: int
    last_start_ns: int


@dataclass(frozen=True, slots=True)
class BucketRow:
    """How many values of a metric lie above `low_ns` and up to `high_ns`: a row of query `latency_buckets`."""

    metric: str
    low_ns: float
    high_ns: float
    count: int


@dataclass(frozen=True, slots=True)
class Answers:
    """The reports; `empty` says why there are none, if no request began in the window.

    `regression` is None where there is nothing to hold the window against.
    """

    window: Window
    filters: Filters
    empty: str
    stages: StageReport
    tail: TailReport
    latency: LatencyReport
    series: LatencyReport
    buckets: tuple[BucketRow, ...]
    attribute: str
    versions: tuple[VersionRow, ...]
    entries: tuple[Optimization, ...]
    ledger: LedgerReport
    different: DifferentReport
    regression: Regression | None
    layers: LayerReport
    slowest: tuple[SlowRequest, ...]
    traces: tuple[TraceReport, ...]

    @property
    def requests(self) -> int:
        """Requests in the window."""
        return self.stages.requests


def gather(client: Client, window: Window, filters: Filters, attribute: str = VERSION) -> Answers:
    """Ask all that the page shows; `attribute` is the resource attribute whose changes are deployments."""
    window = whole_seconds(window)
    stages = stage_report(client, window, filters)
    slowest = tuple(slowest_requests(client, window, filters, TRACES))
    entries = read(client)
    latency = latency_report(client, window, filters)
    return Answers(
        window=window,
        filters=filters,
        empty="" if stages.requests else empty_note(client, window, filters),
        stages=stages,
        tail=tail_report(client, window, filters),
        latency=latency,
        series=series_report(client, window, filters),
        buckets=bucket_rows(client, window, filters, latency.sample),
        attribute=attribute,
        versions=version_rows(client, window, filters, attribute, latency.sample),
        entries=tuple(entries),
        ledger=ledger_report(client, entries, filters=filters),
        different=different_report(client, window, filters),
        regression=regression_of(client, window, filters) if stages.requests else None,
        layers=layer_report(client, window, filters, "part"),
        slowest=slowest,
        traces=tuple(trace_report(client, request.trace_id) for request in slowest),
    )


def whole_seconds(window: Window) -> Window:
    """Return the smallest window of whole seconds that holds this one."""
    begin, end = window.since_ns // NS_PER_SECOND, -(-window.until_ns // NS_PER_SECOND)
    return Window(begin * NS_PER_SECOND, end * NS_PER_SECOND)


def series_report(client: Client, window: Window, filters: Filters) -> LatencyReport:
    """Ask for latency over time; of a window of more than `MAX_BUCKETS` days for the last of them."""
    step = step_seconds(window)
    earliest_ns = (window.until_ns // NS_PER_SECOND // step - MAX_BUCKETS + 1) * step * NS_PER_SECOND
    shown = Window(max(window.since_ns, earliest_ns), window.until_ns)
    return latency_report(client, shown, filters, Grouping(step_seconds=step))


def step_seconds(window: Window) -> int:
    """Return the shortest bucket of time of which no more than `MAX_BUCKETS` cover the window, else a day."""
    fitting = (step for step in STEPS if buckets_of(window, step) <= MAX_BUCKETS)
    return next(fitting, STEPS[-1])


def regression_of(client: Client, window: Window, filters: Filters) -> Regression | None:
    """Hold a window of a day or less against the same hours of previous days; None without any."""
    if window.until_ns - window.since_ns > DAY_NS:
        return None
    baseline = previous_days(client, window, filters)
    return regress(client, window, baseline, filters) if baseline else None


def version_rows(
    client: Client, window: Window, filters: Filters, attribute: str, sample: Sample
) -> tuple[VersionRow, ...]:
    """Ask which versions answered the traces that `latency` reads, in the order in which they came."""
    parameters = {**window.parameters, **filters.parameters, "attribute": attribute, **sample.parameters}
    return tuple(version_row(row) for row in client.run("versions", parameters).records() if row["version"])


def version_row(row: dict[str, Any]) -> VersionRow:
    """Turn one row of query `versions` into a record."""
    begin, end = datetime_ns(row["first_start"]), datetime_ns(row["last_start"])
    return VersionRow(row["service"], row["version"], row["requests"], begin, end)


def bucket_rows(client: Client, window: Window, filters: Filters, sample: Sample) -> tuple[BucketRow, ...]:
    """Ask how the metrics are distributed, of the traces that `latency` reads."""
    parameters = {**window.parameters, **filters.parameters, **sample.parameters}
    return tuple(BucketRow(**row) for row in client.run("latency_buckets", parameters).records())
