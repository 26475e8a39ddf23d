"""What the demo asks the traces: stages, what the scheduler did, parts of the model, and the slowest request's trace.

Errors: UserError as the client says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from tailspan_queries import catalog
from tailspan_queries.client import Client
from tailspan_queries.filters import Filters
from tailspan_queries.layers_contribution import contribution_report
from tailspan_queries.layers_records import ContributionReport
from tailspan_queries.records import StageReport
from tailspan_queries.stages import stage_report
from tailspan_queries.times import Window
from tailspan_queries.traces import TraceReport, trace_report


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What the engine's scheduler did in a window; the names are the columns of `scheduling.sql`."""

    steps: int
    mixed_steps: int
    requests_mean: float
    requests_max: int
    waiting_max: int
    kv_usage_max_ratio: float
    prompts: int
    prompt_tokens: int
    cached_tokens: int
    chunked_prompts: int
    chunks_max: int
    evictions: int
    evicted_requests: int


@dataclass(frozen=True, slots=True)
class Reports:
    """The reports; no slowest trace when there is none at all."""

    stages: StageReport
    scheduling: Scheduling
    contribution: ContributionReport
    slowest: TraceReport | None


def read_reports(client: Client, window: Window, service: str) -> Reports:
    """Ask for the reports of one service's requests within the window."""
    filters = Filters(service=service)
    rows = client.run("slowest", {**window.parameters, **filters.parameters, "limit": 1}).records()
    return Reports(
        stages=stage_report(client, window, filters),
        scheduling=Scheduling(**run_query(client, "scheduling", {**window.parameters, "service": service})[0]),
        contribution=contribution_report(client, window, filters),
        slowest=trace_report(client, rows[0]["trace_id"]) if rows else None,
    )


def run_query(client: Client, name: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Run one of the demo's own queries and return its rows."""
    text = (resources.files(__package__) / f"{name}.sql").read_text(encoding="utf-8")
    return client.execute(catalog.parse(f"demo/{name}", text), parameters).records()
