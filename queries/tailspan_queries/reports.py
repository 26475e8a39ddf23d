"""The Python interface to the reports: ask ClickHouse, get records, render them.

    client = connect("http://127.0.0.1:8123")
    report = stage_report(client, parse_window("15m", "now"), Filters(model="SmolLM2-135M"))
    print_table(render_stages(report))          # or: print_json(stages_json(report))
    print(report.diagnosis)

Errors: `tailspan.errors.UserError` with one line that says what to do.
"""

from __future__ import annotations

from tailspan_queries.advise import Advice, advice
from tailspan_queries.advise_view import advice_csv, advice_json, render_advice
from tailspan_queries.client import Client, connect
from tailspan_queries.compare import compare_groups
from tailspan_queries.compare_records import Comparison, Group
from tailspan_queries.compare_view import comparison_csv, comparison_json, render_comparison
from tailspan_queries.console import print_csv, print_json, print_table
from tailspan_queries.different import DifferentReport, different_report
from tailspan_queries.different_view import different_csv, different_json, render_different
from tailspan_queries.engines import EngineReport, EngineRow, Gap, engine_report
from tailspan_queries.engines_view import engines_csv, engines_json, render_engines
from tailspan_queries.events import WorkerEvent, worker_events
from tailspan_queries.fairness import FairnessReport, fairness_report
from tailspan_queries.fairness_view import fairness_csv, fairness_json, render_fairness
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.goodput import Goodput, Slo, parse_slos
from tailspan_queries.gpu import GpuReport, GpuRow, gpu_report
from tailspan_queries.gpu_view import gpu_csv, gpu_json, render_gpu
from tailspan_queries.grouping import Grouping, parse_grouping
from tailspan_queries.interference import (
    Interference,
    InterferenceReport,
    interference_csv,
    interference_json,
    interference_report,
    render_interference,
)
from tailspan_queries.latency import LatencyReport, latency_report
from tailspan_queries.latency_data import latency_csv, latency_json
from tailspan_queries.latency_view import render_latency
from tailspan_queries.layers import LayerReport, LayerRow, layer_report
from tailspan_queries.layers_contribution import contribution_report
from tailspan_queries.layers_contribution_view import contribution_csv, contribution_json, render_contribution
from tailspan_queries.layers_drift import Drift, DriftReport, drift_csv, drift_json, drift_report, render_drift
from tailspan_queries.layers_records import Contribution, ContributionReport, Prediction, Speedup
from tailspan_queries.layers_view import layers_csv, layers_json, render_layers
from tailspan_queries.optimizations import ledger_report
from tailspan_queries.optimizations_output import ledger_csv, ledger_json
from tailspan_queries.optimizations_records import LedgerReport, Optimization, Prices
from tailspan_queries.optimizations_store import read as read_optimizations
from tailspan_queries.optimizations_view import render_ledger
from tailspan_queries.optimizer import LatencyOptimizer
from tailspan_queries.preemption import (
    Preemption,
    PreemptionReport,
    preemption_csv,
    preemption_json,
    preemption_report,
    render_preemption,
)
from tailspan_queries.records import EXACT, ROLLUP, Distribution, Method, StageReport, StageRow, Tail
from tailspan_queries.regress import Regression, previous_days, regress
from tailspan_queries.regress_view import regression_csv, regression_json, render_regression
from tailspan_queries.slow_steps import SlowStep, StepSummary
from tailspan_queries.slowest import SlowRequest, render_slowest, slowest_csv, slowest_json, slowest_requests
from tailspan_queries.stages import stage_report
from tailspan_queries.stages_by import StagesByReport, stages_by_report
from tailspan_queries.stages_by_view import render_stages_by, stages_by_csv, stages_by_json
from tailspan_queries.stages_view import render_stages, stages_csv, stages_json
from tailspan_queries.tail import TailReport, tail_report
from tailspan_queries.tail_view import render_tail, tail_csv, tail_json
from tailspan_queries.times import Window, parse_window
from tailspan_queries.trace_spans import SpanRow
from tailspan_queries.traces import Ledger, TraceReport, trace_report
from tailspan_queries.traces_view import render_trace, trace_csv, trace_json
from tailspan_queries.whatif import WhatIf, what_if
from tailspan_queries.whatif_records import Change
from tailspan_queries.whatif_view import render_what_if, what_if_csv, what_if_json

__all__ = [
    "ALL",
    "EXACT",
    "ROLLUP",
    "Advice",
    "Change",
    "Client",
    "Comparison",
    "Contribution",
    "ContributionReport",
    "DifferentReport",
    "Distribution",
    "Drift",
    "DriftReport",
    "EngineReport",
    "EngineRow",
    "FairnessReport",
    "Filters",
    "Gap",
    "Goodput",
    "GpuReport",
    "GpuRow",
    "Group",
    "Grouping",
    "Interference",
    "InterferenceReport",
    "LatencyOptimizer",
    "LatencyReport",
    "LayerReport",
    "LayerRow",
    "Ledger",
    "LedgerReport",
    "Method",
    "Optimization",
    "Prediction",
    "Preemption",
    "PreemptionReport",
    "Prices",
    "Regression",
    "Slo",
    "SlowRequest",
    "SlowStep",
    "SpanRow",
    "Speedup",
    "StageReport",
    "StageRow",
    "StagesByReport",
    "StepSummary",
    "Tail",
    "TailReport",
    "TraceReport",
    "WhatIf",
    "Window",
    "WorkerEvent",
    "advice",
    "advice_csv",
    "advice_json",
    "compare_groups",
    "comparison_csv",
    "comparison_json",
    "connect",
    "contribution_csv",
    "contribution_json",
    "contribution_report",
    "different_csv",
    "different_json",
    "different_report",
    "drift_csv",
    "drift_json",
    "drift_report",
    "engine_report",
    "engines_csv",
    "engines_json",
    "fairness_csv",
    "fairness_json",
    "fairness_report",
    "gpu_csv",
    "gpu_json",
    "gpu_report",
    "interference_csv",
    "interference_json",
    "interference_report",
    "latency_csv",
    "latency_json",
    "latency_report",
    "layer_report",
    "layers_csv",
    "layers_json",
    "ledger_csv",
    "ledger_json",
    "ledger_report",
    "parse_grouping",
    "parse_slos",
    "parse_window",
    "preemption_csv",
    "preemption_json",
    "preemption_report",
    "previous_days",
    "print_csv",
    "print_json",
    "print_table",
    "read_optimizations",
    "regress",
    "regression_csv",
    "regression_json",
    "render_advice",
    "render_comparison",
    "render_contribution",
    "render_different",
    "render_drift",
    "render_engines",
    "render_fairness",
    "render_gpu",
    "render_interference",
    "render_latency",
    "render_layers",
    "render_ledger",
    "render_preemption",
    "render_regression",
    "render_slowest",
    "render_stages",
    "render_stages_by",
    "render_tail",
    "render_trace",
    "render_what_if",
    "slowest_csv",
    "slowest_json",
    "slowest_requests",
    "stage_report",
    "stages_by_csv",
    "stages_by_json",
    "stages_by_report",
    "stages_csv",
    "stages_json",
    "tail_csv",
    "tail_json",
    "tail_report",
    "trace_csv",
    "trace_json",
    "trace_report",
    "what_if",
    "what_if_csv",
    "what_if_json",
    "worker_events",
]
