"""What the tail is made of that the mean is not: the shares of every stage in mean, tail, variance and critical path.

In: a client, a window, filters, the quantile at which the tail begins, an attribute. Out: `TailReport`.
Of more than `READ_LIMIT` stored requests a sample of about as many is read, unless everything is asked for: counts are
scaled up, and the shares of the tail come with a margin.
Memory of ClickHouse: some 2 KB for each request that is read.
Units: ns, shares between 0 and 1. Errors: UserError as `client` says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tailspan_queries import tail_diagnosis
from tailspan_queries.breakdown import UNKNOWN
from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.grouping import NAMELESS
from tailspan_queries.records import REQUEST, TAIL_QUANTILE
from tailspan_queries.sampling import Sample, choose
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
    tail_share_margin_ratio: float | None = None
    """Half of a 95 % interval of the share of the tail; None where every request was read, or one was."""

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
    sample: Sample
    rows: tuple[TailStage, ...]
    overlapping: bool = False
    """Stages overlap or leave the request, so that the critical path says something of its own."""
    diagnosis: str = ""
    cautions: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The values of the attribute, in order."""
        return tuple(dict.fromkeys(row.key for row in self.rows))

    @property
    def nobody_has_it(self) -> bool:
        """Say whether no request has the attribute."""
        return self.keys == ("",) and self.by not in NAMELESS

    def label(self, key: str) -> str:
        """Return a value of the attribute as it is printed."""
        return key or NAMELESS.get(self.by, UNKNOWN)

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
    *,
    everything: bool = False,
) -> TailReport:
    """Ask what mean, tail and variance consist of; `by` is an attribute, or `all` for one table."""
    sample = choose(client, window, filters, READ_LIMIT, everything=everything)
    parameters = {**window.parameters, **filters.parameters, **sample.parameters}
    asked = {**parameters, "quantile": quantile, "by": by, "limit": limit}
    rows = tuple(TailStage(**row) for row in client.run("tail_by", asked).records())
    report = TailReport(window, filters, quantile, by, sample, rows, tail_diagnosis.overlapping(rows))
    return replace(report, diagnosis=tail_diagnosis.diagnose(report), cautions=tail_diagnosis.cautions(report))
