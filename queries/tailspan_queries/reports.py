"""The Python interface to the reports: ask ClickHouse, get records, render them.

    client = connect("http://127.0.0.1:8123")
    report = stage_report(client, parse_window("15m", "now"), Filters(model="SmolLM2-135M"))
    print_table(render_stages(report))          # or: print_json(stages_json(report))
    print(report.diagnosis)

Errors: `tailspan.errors.UserError` with one line that says what to do.
"""

from __future__ import annotations

from tailspan_queries.client import Client, connect
from tailspan_queries.console import print_csv, print_json, print_table
from tailspan_queries.engines import EngineReport, EngineRow, Gap, engine_report
from tailspan_queries.engines_view import engines_csv, engines_json, render_engines
from tailspan_queries.events import WorkerEvent, worker_events
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.gpu import GpuReport, GpuRow, gpu_report
from tailspan_queries.gpu_view import gpu_csv, gpu_json, render_gpu
from tailspan_queries.interference import (
    Interference,
    InterferenceReport,
    interference_csv,
    interference_json,
    interference_report,
    render_interference,
)
from tailspan_queries.layers import LayerReport, LayerRow, layer_report
from tailspan_queries.layers_contribution import contribution_report
from tailspan_queries.layers_contribution_view import contribution_csv, contribution_json, render_contribution
from tailspan_queries.layers_drift import Drift, DriftReport, drift_csv, drift_json, drift_report, render_drift
from tailspan_queries.layers_records import Contribution, ContributionReport, Prediction, Speedup
from tailspan_queries.layers_view import layers_csv, layers_json, render_layers
from tailspan_queries.preemption import (
    Preemption,
    PreemptionReport,
    preemption_csv,
    preemption_json,
    preemption_report,
    render_preemption,
)
from tailspan_queries.records import EXACT, ROLLUP, Distribution, Method, StageReport, StageRow, Tail
from tailspan_queries.slow_steps import SlowStep, StepSummary
from tailspan_queries.slowest import SlowRequest, render_slowest, slowest_csv, slowest_json, slowest_requests
from tailspan_queries.stages import stage_report
from tailspan_queries.stages_view import render_stages, stages_csv, stages_json
from tailspan_queries.times import Window, parse_window
from tailspan_queries.traces import Ledger, SpanRow, TraceReport, trace_report
from tailspan_queries.traces_view import render_trace, trace_csv, trace_json

__all__ = [
    "ALL",
    "EXACT",
    "ROLLUP",
    "Client",
    "Contribution",
    "ContributionReport",
    "Distribution",
    "Drift",
    "DriftReport",
    "EngineReport",
    "EngineRow",
    "Filters",
    "Gap",
    "GpuReport",
    "GpuRow",
    "Interference",
    "InterferenceReport",
    "LayerReport",
    "LayerRow",
    "Ledger",
    "Method",
    "Prediction",
    "Preemption",
    "PreemptionReport",
    "SlowRequest",
    "SlowStep",
    "SpanRow",
    "Speedup",
    "StageReport",
    "StageRow",
    "StepSummary",
    "Tail",
    "TraceReport",
    "Window",
    "WorkerEvent",
    "connect",
    "contribution_csv",
    "contribution_json",
    "contribution_report",
    "drift_csv",
    "drift_json",
    "drift_report",
    "engine_report",
    "engines_csv",
    "engines_json",
    "gpu_csv",
    "gpu_json",
    "gpu_report",
    "interference_csv",
    "interference_json",
    "interference_report",
    "layer_report",
    "layers_csv",
    "layers_json",
    "parse_window",
    "preemption_csv",
    "preemption_json",
    "preemption_report",
    "print_csv",
    "print_json",
    "print_table",
    "render_contribution",
    "render_drift",
    "render_engines",
    "render_gpu",
    "render_interference",
    "render_layers",
    "render_preemption",
    "render_slowest",
    "render_stages",
    "render_trace",
    "slowest_csv",
    "slowest_json",
    "slowest_requests",
    "stage_report",
    "stages_csv",
    "stages_json",
    "trace_csv",
    "trace_json",
    "trace_report",
    "worker_events",
]
