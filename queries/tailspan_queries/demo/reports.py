"""What the demo asks the traces: the stage report, and the trace of the slowest request.

Errors: UserError as the client says.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailspan_queries.client import Client
from tailspan_queries.filters import Filters
from tailspan_queries.records import StageReport
from tailspan_queries.stages import stage_report
from tailspan_queries.times import Window
from tailspan_queries.traces import TraceReport, trace_report


@dataclass(frozen=True, slots=True)
class Reports:
    """The two reports; no slowest trace when there is none at all."""

    stages: StageReport
    slowest: TraceReport | None


def read_reports(client: Client, window: Window, service: str) -> Reports:
    """Ask for both reports of one service's requests within the window."""
    filters = Filters(service=service)
    rows = client.run("slowest", {**window.parameters, **filters.parameters, "limit": 1}).records()
    return Reports(
        stages=stage_report(client, window, filters),
        slowest=trace_report(client, rows[0]["trace_id"]) if rows else None,
    )
