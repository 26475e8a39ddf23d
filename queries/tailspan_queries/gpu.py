"""Whether each engine's device computed, waited for its host between steps, or ran at the pace of its launches.

In: a client, a window, filters. Out: `GpuReport`. What counts as launch-bound is in the header of query `gpu`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailspan_queries import units
from tailspan_queries.client import Client
from tailspan_queries.engines import GRAPHS, KEEPS_UP
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.times import Window

HOST_CLOCK = "cpu"
LAUNCHED = 0.2
"""Share of the device's time at the pace of its launches from which on that is worth a change."""
UNTIMED = 0.05
"""Share of steps without device time that a reader should know of."""


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One engine; the names are the columns of query `gpu`."""

    service: str
    instance: str
    engine_id: str
    model: str
    device: str
    step_count: int
    kept_count: int
    untimed_count: int
    busy_ns: float
    idle_ns: float
    idle_unknown_count: int
    busy_ratio: float | None
    idle_ratio: float | None
    launched_ratio: float | None
    launch_bound_ratio: float | None
    busy_p50_ns: float | None
    busy_p99_ns: float | None
    idle_p50_ns: float | None
    idle_p99_ns: float | None
    launch_p50_ns: float | None
    launch_p99_ns: float | None
    prefill_busy_ns: float
    decode_busy_ns: float
    uncertainty_ns: int

    @property
    def waited_ns(self) -> float:
        """Device time that the host cost: between steps, and in steps at the pace of their launches."""
        return self.idle_ns + (self.launched_ratio or 0.0) * (self.busy_ns + self.idle_ns)


@dataclass(frozen=True, slots=True)
class GpuReport:
    """The engines of a window, the most device time first."""

    window: Window
    filters: Filters
    rows: tuple[GpuRow, ...]


def gpu_report(client: Client, window: Window, filters: Filters = ALL) -> GpuReport:
    """Ask what the devices did."""
    rows = client.run("gpu", {**window.parameters, **filters.parameters}).records()
    return GpuReport(window, filters, tuple(GpuRow(**row) for row in rows))


def device_name(device: str) -> str:
    """Return a device as it is shown; empty if none was timed."""
    return f"{device} (host clock)" if device == HOST_CLOCK else device


def diagnose(report: GpuReport) -> str:
    """Return one sentence about the engine whose device waited most; empty without steps."""
    if not report.rows:
        return ""
    timed = [row for row in report.rows if row.busy_ratio is not None]
    if not timed:
        return (
            "no step has a device time: timing is switched off (TAILSPAN_DEVICE_TIMING=0), or not there for this "
            "engine (tailspan doctor)."
        )
    # A row's ratios are known together.
    row = max(timed, key=lambda found: found.waited_ns)
    name = row.engine_id or "the engine"
    busy, idle, launched = row.busy_ratio or 0.0, row.idle_ratio or 0.0, row.launched_ratio or 0.0
    if row.device == HOST_CLOCK:
        return (
            f"{name} has no GPU: by its host's clock the model ran for {units.percent_text(busy)} of the time with "
            f"requests, and {units.percent_text(idle, 1)} passed between steps."
        )
    if launched >= LAUNCHED and launched >= idle:
        return (
            f"{name} is launch-bound: for {units.percent_text(launched)} of the time with requests its device ran at "
            f"the pace of the launches, and {units.percent_text(idle, 1)} passed between steps. {GRAPHS}"
        )
    if idle > KEEPS_UP:
        return (
            f"the device of {name} waited {units.percent_text(idle, 1)} of the time with requests for its host, "
            "between steps: scheduler, sampling, detokenisation (tailspan engine); asynchronous scheduling hides them."
        )
    return (
        f"the device of {name} is kept busy, {units.percent_text(busy)} of the time with requests: look at the parts "
        "of the model (tailspan layers) and at the batch."
    )


def cautions(report: GpuReport) -> list[str]:
    """Return what a reader must know before trusting the numbers."""
    found = []
    for row in report.rows:
        untimed = units.part(row.untimed_count, row.step_count)
        if row.device and untimed > UNTIMED:
            found.append(
                f"{units.percent_text(untimed)} of the steps of {row.engine_id} have no device time: marks ran out, "
                "streams changed, or they did not come back in time"
            )
        unknown = units.part(row.idle_unknown_count, row.step_count - row.untimed_count)
        if row.device and unknown > UNTIMED:
            found.append(
                f"before {units.percent_text(unknown)} of the timed steps of {row.engine_id} the idle time is not known"
            )
    return found
