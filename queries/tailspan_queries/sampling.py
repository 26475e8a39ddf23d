"""Which traces are read where a window holds more requests than a question needs, and from which table.

In: a client, a window, filters, how many requests to read at most. Out: `Sample`, the parameters `parts` and `spans` of
the queries that read one.
Traces fall into `PARTS` parts by a hash of their id, so that a sample is of whole traces, the same in every query, and
ids need not begin at random. Table `spans_sample` holds the first `STORED` parts ordered by part: a sample reads what
it needs. Where that table begins within the window, since it was made later, the sample is read from `spans`.
Errors: `UserError` as `client` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tailspan_queries.client import Client
from tailspan_queries.filters import Filters
from tailspan_queries.times import Window

PARTS = 4096
"""Parts that traces fall into: `sipHash64(trace_id) % 4096`."""
STORED = 256
"""Of these, the first ones are in table `spans_sample`."""
SCAN_LIMIT = 400_000
"""Stored requests up to which `spans` is gone through, whatever few of them are asked for."""
FEW = 2_500
"""Requests of the stored sample below which it says too little of a tail, so that all of `spans` is gone through."""
MISSING_RATIO = 0.001
"""Of the requests of a window, those that `spans_sample` may lack: an insert that is going on has not added them."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The first `parts` of `PARTS` parts of all traces; `stored` where table `spans_sample` has them."""

    parts: int = PARTS
    stored: bool = False

    @property
    def parameters(self) -> dict[str, str | int]:
        """The query parameters that say this."""
        return {"parts": self.parts, "spans": "spans_sample" if self.stored else "spans"}

    @property
    def whole(self) -> bool:
        """Say whether every request is read."""
        return self.parts == PARTS

    @property
    def ratio(self) -> float:
        """Part of the traces that is read, above 0 and at most 1."""
        return self.parts / PARTS

    @property
    def text(self) -> str:
        """The part of the traces as it is printed, such as `1.6 % of the traces`."""
        return f"{100 * self.ratio:.2g} % of the traces"


WHOLE = Sample()


@dataclass(frozen=True, slots=True)
class Stored:
    """Requests that are stored: `kept` of those asked for, `scanned` that must be gone through to find them."""

    kept: int
    scanned: int


def choose(
    client: Client, windows: Window | Sequence[Window], filters: Filters, limit: int, *, everything: bool = False
) -> Sample:
    """Return the largest sample of about `limit` requests that need not be searched for among too many others."""
    if everything:
        return WHOLE
    together = (windows,) if isinstance(windows, Window) else tuple(windows)
    return sample_of(stored(client, together, filters), limit, lambda: all(covers(client, one) for one in together))


def sample_of(found: Stored, limit: int, covered: Callable[[], bool]) -> Sample:
    """Return the sample of what is stored; `covered` says whether `spans_sample` holds its part of it."""
    parts = PARTS if found.kept <= limit else max(1, PARTS * limit // found.kept)
    stored_parts = min(parts, STORED)
    if found.scanned <= max(SCAN_LIMIT, limit) or found.kept * stored_parts < FEW * PARTS or not covered():
        return Sample(parts)
    return Sample(stored_parts, stored=True)


def stored(client: Client, windows: Sequence[Window], filters: Filters) -> Stored:
    """Return how many requests the windows hold, to the minute."""
    asked = ({**window.whole_minutes.parameters, **filters.parameters} for window in windows)
    rows = [client.run("data_range", parameters).records()[0] for parameters in asked]
    return Stored(sum(int(row["window_kept"]) for row in rows), sum(int(row["window_scanned"]) for row in rows))


def covers(client: Client, window: Window) -> bool:
    """Say whether `spans_sample` holds its part of the window, but for at most `MISSING_RATIO` of the requests."""
    row = client.run("coverage", window.parameters).records()[0]
    return bool(row["missing_count"] <= MISSING_RATIO * row["kept_count"])


def statement(sample: Sample, what: str) -> str:
    """Say what a sample does to percentiles and counts."""
    return (
        f"{what} over {sample.text}, counts scaled up (--exact reads all):\n"
        "percentile q of n requests is within 2√(q(1-q)/n) of its rank, 19 times in 20"
    )
