"""What the stage report holds: plain records, from the queries to the renderers.

Units: nanoseconds (`_ns`) and shares between 0 and 1 (`_ratio`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tailspan import attributes
from tailspan_queries.events import WorkerEvent
from tailspan_queries.filters import Filters
from tailspan_queries.sampling import WHOLE, Sample
from tailspan_queries.times import Window

REQUEST = attributes.ROLE_REQUEST
"""Name of the row that holds the end-to-end time."""
STAGE_ORDER = (*attributes.STAGES, attributes.UNATTRIBUTED, REQUEST)
"""The rows of a stage report from top to bottom; stages that tailspan does not know come before `unattributed`."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
TAIL_QUANTILE = 0.99
STATUS_ERROR = 2
"""`status_code` of a span with an error, as in OTLP."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Percentiles, maximum and sum of one kind of time of one stage, all in nanoseconds."""

    count: int
    sum_ns: float
    p50_ns: float
    p90_ns: float
    p95_ns: float
    p99_ns: float
    p999_ns: float
    max_ns: float


@dataclass(frozen=True, slots=True)
class StageRow:
    """One stage over all requests of a report; `unattributed` and `request` are rows as well.

    Counts are estimates where requests were sampled: `kept_count` spans are stored and stand for `count`.
    `variance_share_ratio` is None where it is not known: from the rollup, or if all requests take equally long.
    """

    stage: str
    count: int
    kept_count: int
    error_count: int
    share_ratio: float
    tail_share_ratio: float
    tail_mean_ns: float
    variance_share_ratio: float | None
    wall: Distribution
    busy: Distribution | None
    gpu: Distribution | None
    tail_share_margin_ratio: float | None = None
    """Half of a 95 % interval of the share of the tail; None where every request was read for it."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The slowest requests: those whose end-to-end time reaches `threshold_ns`; of a sample `requests` is scaled up."""

    quantile: float
    requests: int
    threshold_ns: float
    mean_ns: float
    sample: Sample = WHOLE


@dataclass(frozen=True, slots=True)
class Method:
    """How the percentiles were computed, and how far off they can be."""

    name: str
    relative_error: float
    statement: str


EXACT = Method("exact", 0.0, "percentiles exact, interpolated as numpy.percentile does")
ROLLUP = Method("rollup", 0.008, "percentiles ±0.8 % (sketches by minute and hour; --exact reads the raw spans)")


@dataclass(frozen=True, slots=True)
class StageReport:
    """Percentiles and shares of every stage of the requests in a window; without requests, `rows` is empty."""

    window: Window
    filters: Filters
    method: Method
    requests: int
    rows: tuple[StageRow, ...]
    tail: Tail
    diagnosis: str = ""
    cautions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    events: tuple[WorkerEvent, ...] = ()

    @property
    def kept_requests(self) -> int:
        """Requests whose spans are stored; they stand for `requests`."""
        return next((row.kept_count for row in self.rows if row.stage == REQUEST), self.requests)
