"""TTFT, ITL, TPOT and end-to-end time, rates of requests and tokens, failures and goodput, by group and over time.

In: a client, a window, filters, a `Grouping`, limits. Out: `LatencyReport`.
Everything comes from the raw spans: exact but for ITL, whose gaps are kept as histograms within 1.1 %. Of more than
`READ_LIMIT` stored requests a sample is read.
Memory of ClickHouse: some 2 KB for each request that is read, 0.4 GB at most unless everything is asked for.
Rates are by second of the window that lies in a bucket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.goodput import METRICS, Goodput, Slo, goodput, slo_parameters
from tailspan_queries.grouping import READ_LIMIT, Grouping, bucket_seconds
from tailspan_queries.records import QUANTILES
from tailspan_queries.sampling import Sample, choose, statement
from tailspan_queries.times import Window, datetime_ns
from tailspan_queries.units import part

ITL_ERROR = 0.011
"""Relative error of a gap between tokens, from its histogram."""
EXACT_STATEMENT = "percentiles exact, interpolated as numpy.percentile does; of ITL ±1.1 % (histograms)"

Line = tuple[datetime, str]
"""Bucket of time and key of a group."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """One metric over `count` requests (ITL: gaps), in nanoseconds; all None without any."""

    count: int
    mean_ns: float | None
    p50_ns: float | None
    p90_ns: float | None
    p95_ns: float | None
    p99_ns: float | None
    p999_ns: float | None
    max_ns: float | None


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """One group in one bucket of time, `seconds` of which lie in the window; `bucket_ns` is None without buckets.

    `active_seconds` is from the begin of the first request to the end of the last.
    """

    bucket_ns: int | None
    key: str
    rank: int
    seconds: float
    active_seconds: float
    requests: int
    kept_requests: int
    completed: int
    error_count: int
    aborted_count: int
    input_tokens: int
    output_tokens: int
    ttft: Percentiles
    itl: Percentiles
    tpot: Percentiles
    e2e: Percentiles
    goodput: Goodput | None

    def rate(self, number: float) -> float:
        """Return a number by second."""
        return part(number, self.seconds)

    @property
    def error_ratio(self) -> float:
        """Share of the requests that failed."""
        return part(self.error_count, self.requests)

    @property
    def aborted_ratio(self) -> float:
        """Share of the requests that their caller gave up."""
        return part(self.aborted_count, self.requests)


@dataclass(frozen=True, slots=True)
class LatencyReport:
    """What was asked, and the rows in the order of time and group."""

    window: Window
    filters: Filters
    grouping: Grouping
    slos: tuple[Slo, ...]
    sample: Sample
    statement: str
    group_count: int
    rows: tuple[LatencyRow, ...]

    @property
    def requests(self) -> int:
        """Requests of the listed groups."""
        return sum(row.requests for row in self.rows)

    @property
    def kept_requests(self) -> int:
        """Requests that were read and stand for them."""
        return sum(row.kept_requests for row in self.rows)

    @property
    def groups(self) -> int:
        """Groups that are listed."""
        return len({row.key for row in self.rows})


def latency_report(
    client: Client,
    window: Window,
    filters: Filters = ALL,
    grouping: Grouping | None = None,
    slos: Sequence[Slo] = (),
    *,
    everything: bool = False,
) -> LatencyReport:
    """Ask ClickHouse and return the report; `everything` reads all requests, however many.

    Raises: UserError as `client` says.
    """
    grouping = grouping or Grouping()
    sample = choose(client, window, filters, READ_LIMIT, everything=everything)
    asked = {**window.parameters, **filters.parameters, **grouping.parameters, **sample.parameters}
    records = client.run("latency", asked).records()
    met = goodputs(client, asked, slos)
    rows = [latency_row(record, grouping, window, met) for record in records]
    rows.sort(key=lambda row: (row.bucket_ns or 0, grouping.order(row.key, row.rank)))
    stated = EXACT_STATEMENT if sample.whole else statement(sample, "percentiles (ITL ±1.1 %)")
    groups = records[0]["group_count"] if records else 0
    return LatencyReport(window, filters, grouping, tuple(slos), sample, stated, groups, tuple(rows))


def goodputs(client: Client, asked: Mapping[str, Any], slos: Sequence[Slo]) -> dict[Line, Goodput]:
    """Ask how many requests met the limits, by bucket of time and group; without limits nothing is asked."""
    if not slos:
        return {}
    records = client.run("goodput", {**asked, **slo_parameters(slos)}).records()
    return {(record["bucket"], record["key"]): goodput(record, slos) for record in records}


def latency_row(row: Mapping[str, Any], grouping: Grouping, window: Window, met: Mapping[Line, Goodput]) -> LatencyRow:
    """Turn one row of the answer into a record."""
    bucket_ns = datetime_ns(row["bucket"]) if grouping.step_seconds else None
    counts = {"e2e_count": row["requests"]}
    return LatencyRow(
        bucket_ns=bucket_ns,
        key=row["key"],
        rank=row["group_rank"],
        seconds=bucket_seconds(bucket_ns, grouping.step_seconds, window),
        active_seconds=row["active_s"],
        requests=row["requests"],
        kept_requests=row["kept_requests"],
        completed=row["completed"],
        error_count=row["error_count"],
        aborted_count=row["aborted_count"],
        input_tokens=row["input_tokens"],
        output_tokens=row["output_tokens"],
        goodput=met.get((row["bucket"], row["key"])),
        **{metric: percentiles({**row, **counts}, metric) for metric in METRICS},
    )


def percentiles(row: Mapping[str, Any], metric: str) -> Percentiles:
    """Collect the columns of one metric."""
    names = ("mean", *QUANTILES, "max")
    return Percentiles(row[f"{metric}_count"], **{f"{name}_ns": row[f"{metric}_{name}_ns"] for name in names})
