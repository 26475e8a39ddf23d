"""How busy each engine was, how long it idled between steps, and the longest gaps with what followed them.

In: a client, a window, filters. Out: `EngineReport`. Times are of the host's clock unless they are named `device`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tailspan_queries import units
from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.times import Window

DEFAULT_THRESHOLD_NS = 10_000_000
KEEPS_UP = 0.05
"""Share of the time with requests up to which idle time between steps is no matter."""
DEVICE_KEPT_BUSY = 0.8
"""Share of a step that the device should compute."""
LAUNCH_BOUND = 0.5
"""Share of the device time in launch-bound steps from which on launches are what to look at."""
GRAPHS = "Look at CUDA graphs (is --enforce-eager on?) and at larger batches."


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One engine, or one minute of one; the names are the columns of query `engine`."""

    service: str
    instance: str
    engine_id: str
    minute: datetime | None
    model: str
    step_count: int
    kept_count: int
    busy_ns: float
    idle_ns: float
    empty_ns: float
    busy_ratio: float
    idle_ratio: float
    idle_p50_ns: float
    idle_p99_ns: float
    idle_max_ns: int
    long_gaps: int
    long_gaps_ns: float
    wall_p50_ns: float
    wall_p99_ns: float
    requests_mean: float
    waiting_mean: float
    waiting_max: int
    preempted: int
    device_ratio: float | None
    device_idle_ratio: float | None
    device_launched_ratio: float | None

    @property
    def idle_at_work_ratio(self) -> float:
        """Idle time as a share of the time in which there were requests."""
        return units.part(self.idle_ns, self.idle_ns + self.busy_ns)


@dataclass(frozen=True, slots=True)
class Gap:
    """One gap between two steps; the names are the columns of query `engine_gaps`."""

    start: datetime
    idle_ns: int
    service: str
    instance: str
    engine_id: str
    step: int
    trace_id: str
    wall_ns: int
    requests: int
    waiting: int
    joined: int
    prefill_tokens: int
    decode_tokens: int
    preempted: int


@dataclass(frozen=True, slots=True)
class EngineReport:
    """The engines of a window, the most idle first, or their minutes in order; and the longest gaps."""

    window: Window
    filters: Filters
    by: str
    threshold_ns: int
    rows: tuple[EngineRow, ...]
    gaps: tuple[Gap, ...]


def engine_report(
    client: Client,
    window: Window,
    filters: Filters = ALL,
    by: str = "engine",
    threshold_ns: int = DEFAULT_THRESHOLD_NS,
    gaps: int = 5,
) -> EngineReport:
    """Ask how busy the engines were; `by` is `engine` or `minute`, `gaps` how many of the longest gaps to list."""
    parameters = {**window.parameters, **filters.parameters, "by": by, "threshold_ns": threshold_ns}
    rows = tuple(EngineRow(**row) for row in client.run("engine", parameters).records())
    longest = client.run("engine_gaps", {**parameters, "limit": gaps}).records() if rows and gaps else ()
    return EngineReport(window, filters, by, threshold_ns, rows, tuple(Gap(**row) for row in longest))


def diagnose(report: EngineReport) -> str:
    """Return one sentence about the line with the most idle time; empty without steps."""
    if not report.rows:
        return ""
    worst = max(report.rows, key=lambda row: row.idle_ns)
    idle = worst.idle_at_work_ratio
    when = f" at {worst.minute:%H:%M}" if worst.minute else ""
    sentence = f"{worst.engine_id or 'the engine'}{when} idled {units.percent_text(idle, 1)} of the time with requests"
    if idle > KEEPS_UP:
        sentence += (
            ": scheduler-bound. Look at what the engine's process does between steps: CPU limits, detokenisation and "
            "serving in the same process, logging; async scheduling (--async-scheduling) hides it"
        )
    else:
        sentence += ": the host keeps up between steps"
    return f"{sentence}. {device_note(worst)}"


def device_note(row: EngineRow) -> str:
    """Say what the device did, or that it was not measured."""
    if row.device_ratio is None or row.device_idle_ratio is None:
        return "These are times of the host; no device was measured."
    computed = f"The device computed for {units.percent_text(row.device_ratio)} of the steps"
    launched = row.device_launched_ratio or 0.0
    if launched >= LAUNCH_BOUND:
        return f"{computed}, {units.percent_text(launched)} of that at the pace of its launches: launch-bound. {GRAPHS}"
    if row.device_ratio >= DEVICE_KEPT_BUSY:
        return f"{computed}, so launches keep it busy."
    return (
        f"{computed} and idled {units.percent_text(row.device_idle_ratio)} of the time with requests: launch-bound. "
        f"{GRAPHS}"
    )


def followed_by(gap: Gap) -> str:
    """Say what came after a gap."""
    parts = []
    if gap.preempted:
        parts.append(f"{gap.preempted} evicted")
    if gap.joined:
        parts.append(f"{gap.joined} joined")
    if gap.prefill_tokens:
        parts.append(f"prefill {gap.prefill_tokens:,} tok")
    if gap.decode_tokens:
        parts.append(f"decode {gap.decode_tokens:,}")
    if gap.waiting:
        parts.append(f"{gap.waiting:,} waiting")
    return " · ".join(parts) or "no tokens"
