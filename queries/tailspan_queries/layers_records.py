"""The records about what the parts of the model are of end-to-end time; plain data without I/O. Times are ns."""

from __future__ import annotations

from dataclasses import dataclass

from tailspan_queries import units
from tailspan_queries.filters import Filters
from tailspan_queries.times import Window


@dataclass(frozen=True, slots=True)
class Contribution:
    """One line of the report; the names are the columns of query `layers_contribution`."""

    what: str
    stage: str
    layer: int | None
    kind: str
    mean_ns: float
    share_ratio: float
    prefill_mean_ns: float
    decode_mean_ns: float
    tail_mean_ns: float
    tail_share_ratio: float
    request_count: int
    kept_count: int
    tail_count: int
    covered_ratio: float


@dataclass(frozen=True, slots=True)
class Speedup:
    """A part, a kind or a layer that becomes `factor` times as fast."""

    layer: int | None
    kind: str
    factor: float

    @property
    def name(self) -> str:
        """As it is written on the command line."""
        return "/".join(filter(None, ("" if self.layer is None else str(self.layer), self.kind)))

    @property
    def title(self) -> str:
        """As it is said in a sentence."""
        return self.name if self.kind else f"layer {self.layer}"

    def fits(self, row: Contribution) -> bool:
        """Whether a line by part is made faster."""
        return row.what == "part" and self.layer in (None, row.layer) and self.kind in ("", row.kind)


@dataclass(frozen=True, slots=True)
class Prediction:
    """End-to-end time as it is and as it would be, ns: mean of all requests and of the tail."""

    mean_ns: float
    predicted_mean_ns: float
    tail_mean_ns: float
    predicted_tail_mean_ns: float

    @property
    def mean_change_ratio(self) -> float:
        """Change of the mean; negative is faster."""
        return units.part(self.predicted_mean_ns - self.mean_ns, self.mean_ns)

    @property
    def tail_change_ratio(self) -> float:
        """Change of the mean of the tail."""
        return units.part(self.predicted_tail_mean_ns - self.tail_mean_ns, self.tail_mean_ns)


@dataclass(frozen=True, slots=True)
class ContributionReport:
    """What end-to-end time consists of: parts of the model first, the largest first, then the rest and the sum."""

    window: Window
    filters: Filters
    by: str
    rows: tuple[Contribution, ...]
    speedups: tuple[Speedup, ...] = ()
    prediction: Prediction | None = None
    launched_ratio: float | None = None
    """Share of device time in steps at the pace of their launches; None where no launch is known."""

    @property
    def whole(self) -> Contribution | None:
        """The line of all end-to-end time."""
        return next((row for row in self.rows if row.what == "request" and row.request_count), None)

    @property
    def parts(self) -> tuple[Contribution, ...]:
        """The lines of parts of the model."""
        return tuple(row for row in self.rows if row.what == "part")
