"""Percentiles of every stage for groups of requests and over time.

In: a client, a window, filters, a `Grouping`. Out: `StagesByReport`.
Up to `EXACT_LIMIT` stored requests are read exactly. Of more, what the rollups can be asked by comes from them, within
0.8 %; anything else from the raw spans of at most about `READ_LIMIT` requests: beyond it of a sample.
Memory of ClickHouse: some 2 KB for each request that is read from raw spans, so that it is bounded by 0.4 GB unless the
exact answer is asked for; the rollup needs some 50 MB.
Errors: `UserError` if the rollup is asked for what it does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tailspan.errors import UserError
from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.grouping import READ_LIMIT, Grouping
from tailspan_queries.records import EXACT, REQUEST, ROLLUP, STAGE_ORDER, Distribution, Method
from tailspan_queries.sampling import SCAN_LIMIT, WHOLE, Sample, covers, sample_of, statement, stored
from tailspan_queries.stages import EXACT_LIMIT, distribution
from tailspan_queries.times import Window, datetime_ns

SHOWN = 3
"""Stages beside end-to-end that are shown unless the reader names some."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One stage of one group in one bucket of time.

    `bucket_ns` is the begin of the bucket, None without buckets. `rank` is the group's place by its requests.
    """

    bucket_ns: int | None
    key: str
    rank: int
    stage: str
    count: int
    kept_count: int
    error_count: int
    share_ratio: float | None
    wall: Distribution
    busy: Distribution | None
    gpu: Distribution | None


@dataclass(frozen=True, slots=True)
class StagesByReport:
    """What was asked, how it was answered, and the rows in the order of time, group and stage.

    Of `group_count` groups those with the most requests are in `rows`. `sample` was read of the raw spans.
    """

    window: Window
    filters: Filters
    grouping: Grouping
    method: Method
    sample: Sample
    group_count: int
    rows: tuple[GroupRow, ...]

    @property
    def requests(self) -> int:
        """Requests of the listed groups."""
        return sum(row.count for row in self.rows if row.stage == REQUEST)

    @property
    def kept_requests(self) -> int:
        """Requests that were read and stand for them."""
        return sum(row.kept_count for row in self.rows if row.stage == REQUEST)

    @property
    def groups(self) -> int:
        """Groups that are listed."""
        return len({row.key for row in self.rows})

    def of_stage(self, stage: str) -> list[GroupRow]:
        """Return the rows of one stage."""
        return [row for row in self.rows if row.stage == stage]


def stages_by_report(
    client: Client,
    window: Window,
    filters: Filters = ALL,
    grouping: Grouping | None = None,
    *,
    stage: str = "",
    method: Method | None = None,
) -> StagesByReport:
    """Ask ClickHouse and return the report; `stage` leaves out all others but end-to-end.

    Raises: UserError as the module and `client` say.
    """
    grouping = grouping or Grouping()
    found = stored(client, (window,), filters)
    few = found.kept <= EXACT_LIMIT and found.scanned <= SCAN_LIMIT
    chosen = method or (EXACT if few or not grouping.in_rollup() else ROLLUP)
    if chosen is ROLLUP and not grouping.in_rollup():
        raise UserError(
            "the rollup holds model, service and instance by whole minutes",
            f"Leave --rollup out to ask by {grouping.name or 'shorter steps'}",
        )
    sample = WHOLE
    if chosen is ROLLUP:
        window = window.for_rollup
    elif method is not EXACT:
        sample = sample_of(found, READ_LIMIT, lambda: covers(client, window))
        if not sample.whole:
            chosen = Method("sampled", 0.0, statement(sample, "percentiles"))
    asked = {**window.parameters, **filters.parameters, **grouping.parameters, **sample.parameters, "stage": stage}
    records = client.run("stages_by_rollup" if chosen is ROLLUP else "stages_by", asked).records()
    rows = [group_row(record, grouping) for record in records]
    rows.sort(key=lambda row: (row.bucket_ns or 0, grouping.order(row.key, row.rank), place(row.stage)))
    groups = records[0]["group_count"] if records else 0
    return StagesByReport(window, filters, grouping, chosen, sample, groups, tuple(rows))


def place(stage: str) -> tuple[int, str]:
    """Return what sorts stages as every report lists them."""
    return (STAGE_ORDER.index(stage) if stage in STAGE_ORDER else len(STAGE_ORDER) - 3, stage)


def group_row(row: Mapping[str, Any], grouping: Grouping) -> GroupRow:
    """Turn one row of the answer into a record."""
    return GroupRow(
        bucket_ns=datetime_ns(row["bucket"]) if grouping.step_seconds else None,
        key=row["key"],
        rank=row["group_rank"],
        stage=row["stage"],
        count=row["count"],
        kept_count=row["kept_count"],
        error_count=row["error_count"],
        share_ratio=row["share_ratio"],
        wall=distribution(row, "wall", row["count"]),
        busy=distribution(row, "busy", row["count"]) if row["busy_p50_ns"] is not None else None,
        gpu=distribution(row, "gpu", row["gpu_count"]) if row["gpu_p50_ns"] is not None else None,
    )


def largest_stages(report: StagesByReport, number: int = SHOWN) -> tuple[str, ...]:
    """Return the stages with the largest sums of wall time, the largest first."""
    sums: dict[str, float] = {}
    for row in report.rows:
        if row.stage != REQUEST:
            sums[row.stage] = sums.get(row.stage, 0.0) + row.wall.sum_ns
    found = sorted((stage for stage, total_ns in sums.items() if total_ns > 0), key=lambda stage: -sums[stage])
    return tuple(found[:number])
