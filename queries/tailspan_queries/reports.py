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
from tailspan_queries.events import WorkerEvent, worker_events
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.records import EXACT, ROLLUP, Distribution, Method, StageReport, StageRow, Tail
from tailspan_queries.slowest import SlowRequest, render_slowest, slowest_csv, slowest_json, slowest_requests
from tailspan_queries.stages import stage_report
from tailspan_queries.stages_view import render_stages, stages_csv, stages_json
from tailspan_queries.times import Window, parse_window
from tailspan_queries.traces import Ledger, SpanRow, StepSummary, TraceReport, trace_report
from tailspan_queries.traces_view import render_trace, trace_csv, trace_json

__all__ = [
    "ALL",
    "EXACT",
    "ROLLUP",
    "Client",
    "Distribution",
    "Filters",
    "Ledger",
    "Method",
    "SlowRequest",
    "SpanRow",
    "StageReport",
    "StageRow",
    "StepSummary",
    "Tail",
    "TraceReport",
    "Window",
    "WorkerEvent",
    "connect",
    "parse_window",
    "print_csv",
    "print_json",
    "print_table",
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
