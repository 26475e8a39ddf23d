"""What the tail is made of that the mean is not: the shares of every stage in mean, tail, variance and critical path.

In: a client, a window, filters, the quantile at which the tail begins, an attribute. Out: `TailReport`.
Over windows of more than `READ_LIMIT` stored requests, shares of the mean come from the per-minute rollup (exact but
for requests under way at the ends of the window) and shares of the tail from every request of it; shares of variance,
critical paths and everything by an attribute rest on a sample, chosen by trace id, of at most that many requests.
Units: ns, shares between 0 and 1. Errors: UserError as `client` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tailspan_queries import tail_diagnosis, units
from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.records import REQUEST, TAIL_QUANTILE
from tailspan_queries.times import Window

READ_LIMIT = 100_000
"""Requests that are read with all of their stages; of more, a sample is."""
EVERYTHING = "all"
KEYS = 20
"""Values of an attribute that are listed: those with the most requests."""


@dataclass(frozen=True, slots=True)
class TailStage:
    """One stage of the requests of one key; the names are the columns of query `tail_by`."""

    key: str
    stage: str
    requests: int
    kept_requests: int
    tail_requests: int
    kept_tail_requests: int
    threshold_ns: float
    mean_ns: float
    share_ratio: float
    tail_mean_ns: float
    tail_share_ratio: float
    variance_share_ratio: float | None
    path_ratio: float
    tail_path_ratio: float

    @property
    def tail_to_mean_ratio(self) -> float | None:
        """How many times as large the share of the tail is as that of the mean; None of a stage that takes no time."""
        return self.tail_share_ratio / self.share_ratio if self.share_ratio > 0 else None


@dataclass(frozen=True, slots=True)
class TailReport:
    """The stages of each key, the keys with the most requests first; without requests, `rows` is empty."""

    window: Window
    filters: Filters
    quantile: float
    by: str
    sample: int
    rows: tuple[TailStage, ...]
    overlapping: bool = False
    """Stages overlap or leave the request, so that the critical path says something of its own."""
    diagnosis: str = ""
    cautions: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The values of the attribute, in order."""
        return tuple(dict.fromkeys(row.key for row in self.rows))

    def of(self, key: str) -> tuple[TailStage, ...]:
        """The rows of one key."""
        return tuple(row for row in self.rows if row.key == key)

    def whole(self, key: str) -> TailStage:
        """The row of a key that holds the end-to-end time."""
        return next(row for row in self.rows if row.key == key and row.stage == REQUEST)


def tail_report(
    client: Client,
    window: Window,
    filters: Filters = ALL,
    quantile: float = TAIL_QUANTILE,
    by: str = EVERYTHING,
    limit: int = KEYS,
) -> TailReport:
    """Ask what mean, tail and variance consist of; `by` is an attribute, or `all` for one table."""
    parameters = {**window.parameters, **filters.parameters, "quantile": quantile}
    sample = sampling(client, window, filters, READ_LIMIT)
    rows = [
        TailStage(**row)
        for row in client.run("tail_by", {**parameters, "by": by, "sample": sample, "limit": limit}).records()
    ]
    overlap = tail_diagnosis.overlapping(rows)
    if sample > 1 and by == EVERYTHING and rows:
        tails = client.run("tail_share", parameters).records()
        means = client.run("stages_rollup", {**parameters, **window.whole_minutes.parameters}).records()
        rows = with_every_request(rows, tails, means)
    report = TailReport(window, filters, quantile, by, sample, tuple(rows), overlap)
    return replace(report, diagnosis=tail_diagnosis.diagnose(report), cautions=tail_diagnosis.cautions(report))


def sampling(client: Client, window: Window, filters: Filters, limit: int) -> int:
    """Return of how many requests one is to be read so that about `limit` are: a power of two, 1 for all."""
    row = client.run("data_range", {**window.whole_minutes.parameters, **filters.parameters}).records()[0]
    sample = 1
    while row["window_kept"] > limit * sample:
        sample *= 2
    return sample


def with_every_request(
    rows: Sequence[TailStage], tails: Sequence[Mapping[str, Any]], means: Sequence[Mapping[str, Any]]
) -> list[TailStage]:
    """Put the shares of mean and tail over every request in the place of those over the sample.

    A stage that no request of the sample has is added; what only the sample can say of it is nothing.
    """
    sampled = {row.stage: row for row in rows}
    tail_of = {row["stage"]: row for row in tails}
    mean_of = {row["stage"]: row for row in means}
    whole, tail = mean_of.get(REQUEST), tail_of.get(REQUEST)
    if whole is None or tail is None:
        return list(rows)
    nothing = {"variance_share_ratio": 0.0, "path_ratio": 0.0, "tail_path_ratio": 0.0}
    found = []
    for stage in mean_of:
        of_tail = tail_of.get(stage, {})
        row = sampled.get(stage) or replace(rows[0], stage=stage, **nothing)  # type: ignore[arg-type]
        found.append(
            replace(
                row,
                requests=whole["count"],
                kept_requests=whole["kept_count"],
                tail_requests=tail["tail_requests"],
                kept_tail_requests=tail["kept_requests"],
                threshold_ns=tail["threshold_ns"],
                mean_ns=units.part(mean_of[stage]["wall_sum_ns"], whole["count"]),
                share_ratio=mean_of[stage]["share_ratio"],
                tail_mean_ns=of_tail.get("tail_mean_ns", 0.0),
                tail_share_ratio=of_tail.get("tail_share_ratio", 0.0),
            )
        )
    return found
