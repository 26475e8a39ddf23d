"""What the windows of an entry say: means of its stage and of whole requests, and how sure their difference is.

In: a client and windows. Out: `Sample` for a window, `Measured` for two.
A mean is over all requests of the window, those without the stage counted as 0, so that the means of the stages sum to
that of the requests. Its interval comes from resampling blocks of time with replacement, as requests of one batch or
burst are not independent; the two windows are resampled on their own. Bursts that are longer than a block, a sixtieth
of the window, make it too narrow.
Up to `EXACT_LIMIT` requests come from raw spans, above that from the rollup, in whole minutes, and the means of the
slowest requests from a sample of whole requests.
Units: ns a request. Source: Künsch, "The jackknife and the bootstrap for general stationary observations" (1989).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailspan import attributes
from tailspan_queries import sampling
from tailspan_queries.client import Client
from tailspan_queries.filters import Filters
from tailspan_queries.layers_contribution import contribution_report
from tailspan_queries.optimizations_records import Measured, Optimization, Span
from tailspan_queries.records import EXACT
from tailspan_queries.stages import choose_method, tail_rows
from tailspan_queries.tail import READ_LIMIT
from tailspan_queries.times import Window

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Blocks = NDArray[np.float64]

BLOCKS = 60
"""Blocks that a window is cut into."""
LEAST_BLOCKS = 8
"""Blocks with requests below which there is no interval."""
RESAMPLES = 2000
CONFIDENCE = 0.95
SEED = 5


@dataclass(frozen=True, slots=True)
class Sample:
    """The sums of one window by stage and block, and the means of its slowest requests."""

    kept: int
    requests: Blocks
    """Requests that began in each block, weighted; shape (blocks,), only blocks with requests."""
    sums_ns: Mapping[str, Blocks]
    """Of each stage, of `unattributed` and of `request`; the same shape."""
    tail_ns: Mapping[str, float] = field(default_factory=dict)
    """Mean over the requests from p99 of end-to-end time on."""

    def mean_ns(self, stage: str) -> float:
        """Return the mean of a stage over all requests."""
        weight = float(self.requests.sum())
        return float(self.sums_ns[stage].sum()) / weight if stage in self.sums_ns and weight else 0.0

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that occur, `unattributed` too."""
        return tuple(stage for stage in self.sums_ns if stage != attributes.ROLE_REQUEST)


def sample(client: Client, window: Window, filters: Filters) -> Sample:
    """Read a window; one without requests has `kept` 0."""
    import numpy as np

    exact = choose_method(client, window, filters) is EXACT
    read = window if exact else window.whole_minutes
    parameters = {**read.parameters, **filters.parameters}
    name = "ledger_blocks" if exact else "ledger_minutes"
    rows = client.run(name, {**parameters, "blocks": BLOCKS}).records()
    whole = [row for row in rows if row["stage"] == attributes.ROLE_REQUEST and row["requests"] > 0]
    places = {row["block"]: place for place, row in enumerate(whole)}
    sums: dict[str, Blocks] = {}
    for row in rows:
        found = sums.setdefault(row["stage"], np.zeros(len(whole)))
        # What began after the last request of its block, as the rollup may have it, belongs to the block before.
        earlier = [block for block in places if block <= row["block"]]
        if places:
            found[places[max(earlier, default=min(places))]] += row["wall_sum_ns"]
    traces = sampling.choose(client, read, filters, READ_LIMIT, everything=exact)
    tail = {row["stage"]: row["tail_mean_ns"] for row in tail_rows(client, parameters, traces)}
    counts = np.array([row["requests"] for row in whole], dtype=np.float64)
    return Sample(sum(row["kept_count"] for row in whole), counts, sums, tail)


def gain_interval(before: Sample, after: Sample, stage: str) -> Span | None:
    """Return where `CONFIDENCE` of the resampled gains of a stage lie, ns a request; None with too few blocks."""
    import numpy as np

    if min(len(before.requests), len(after.requests)) < LEAST_BLOCKS:
        return None
    random = np.random.default_rng(SEED)
    gains = resampled_means(before, stage, random) - resampled_means(after, stage, random)
    low, high = np.quantile(gains, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return float(low), float(high)


def resampled_means(sample_: Sample, stage: str, random: np.random.Generator) -> Blocks:
    """Return the mean of a stage in each resampling; shape (RESAMPLES,)."""
    import numpy as np

    blocks = len(sample_.requests)
    drawn = random.multinomial(blocks, np.full(blocks, 1 / blocks), RESAMPLES).astype(np.float64)
    sums = sample_.sums_ns.get(stage, np.zeros(blocks))
    means: Blocks = (drawn @ sums) / (drawn @ sample_.requests)
    return means


def measured_stage(before: Sample, after: Sample, stage: str) -> Measured:
    """Return what two windows say of a stage."""
    request = attributes.ROLE_REQUEST
    return Measured(
        before.mean_ns(stage),
        after.mean_ns(stage),
        gain_interval(before, after, stage),
        before.mean_ns(request),
        after.mean_ns(request),
        before.tail_ns.get(stage, 0.0) - after.tail_ns.get(stage, 0.0),
        before.kept,
        after.kept,
    )


def measured_part(client: Client, item: Optimization, before: Sample, after: Sample) -> Measured | None:
    """Return what two windows say of a part of the model; None if no step of one of them was timed by part."""
    request = attributes.ROLE_REQUEST
    sides = [part_means(client, item, window) for window in (item.before, item.after) if window]
    known = [side for side in sides if side is not None]
    if len(known) < 2:
        return None
    (before_ns, before_tail_ns), (after_ns, after_tail_ns) = known
    whole = before.mean_ns(request), after.mean_ns(request)
    return Measured(before_ns, after_ns, None, *whole, before_tail_ns - after_tail_ns, before.kept, after.kept)


def part_means(client: Client, item: Optimization, window: Window) -> tuple[float, float] | None:
    """Return the mean of a part over all and over the slowest requests; None if it was not timed."""
    report = contribution_report(client, window, item.filters, "part")
    rows = [row for row in report.parts if item.layer in (None, row.layer) and item.kind in ("", row.kind)]
    return (sum(row.mean_ns for row in rows), sum(row.tail_mean_ns for row in rows)) if rows else None
