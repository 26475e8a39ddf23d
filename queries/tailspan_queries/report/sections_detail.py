"""Sections about detail: the layers of the model, and the slowest requests one by one."""

from __future__ import annotations

from functools import partial

from tailspan_queries import layers as layer_times
from tailspan_queries import units
from tailspan_queries.breakdown import UNKNOWN
from tailspan_queries.layers import LayerReport, LayerRow, part_name
from tailspan_queries.records import STATUS_ERROR
from tailspan_queries.report import chart_layers, chart_trace, svg
from tailspan_queries.report.answers import Answers
from tailspan_queries.report.palette import stage_class
from tailspan_queries.report.parts import (
    Cell,
    Figure,
    Section,
    command,
    exact,
    figure,
    number,
    share,
    table,
    time,
    words,
)
from tailspan_queries.times import clock, datetime_ns
from tailspan_queries.traces import Ledger

MODELS, PARTS = 2, 60
"""Models whose layers are drawn, and parts that the table lists."""


def layers_section(answers: Answers) -> Section:
    """Show which layers take the device's time."""
    report = answers.layers
    title = "Layers of the model"
    if not report.rows:
        nothing = "No layer was timed in the window: workers time them while TAILSPAN_LAYER_BUDGET is above 0"
        return Section("layers", title, f"{nothing}; `tailspan doctor` says whether yours do.")
    rows = [
        [
            words(part_name("part", row.layer, row.kind)),
            words(row.model or UNKNOWN),
            number(row.step_count),
            time(row.p50_ns),
            time(row.p99_ns),
            time(row.mean_ns),
            share(row.share_ratio),
            share(row.deviation_ratio),
        ]
        for row in report.rows
    ]
    columns = ("layer/kind", "model", "steps", "p50", "p99", "mean", "of step", "against median layer")
    slow = tuple(
        ("slow", f"{layer_times.slow_name(report, row)} takes {layer_times.slower(row)} longer than the median layer")
        for row in report.slow
    )
    return Section(
        "layers",
        title,
        layer_times.diagnose(report),
        tuple(layer_figures(report)),
        slow,
        (table("Device time of the parts, the largest first", columns, rows, PARTS),),
        tuple(layer_times.cautions(report)),
        (command("layers --by part -n 10000", answers.window, answers.filters),),
    )


def layer_figures(report: LayerReport) -> list[Figure]:
    """Draw the models with the most device time; those without layers are in the table."""
    models: dict[str, list[LayerRow]] = {}
    for row in report.rows:
        if row.layer is not None:
            models.setdefault(row.model, []).append(row)
    largest = sorted(models, key=lambda model: -sum(row.total_ns for row in models[model]))[:MODELS]
    caption = "Mean device time in a step, by layer. A frame marks parts that take longer than in the median layer."
    return [
        figure(
            partial(chart_layers.heat_map, models[model], report.slow, f"layers-{number_}"),
            svg.short(model or UNKNOWN, 60),
            caption,
        )
        for number_, model in enumerate(largest)
    ]


def slowest_section(answers: Answers) -> Section:
    """Draw the slowest requests."""
    ledgers: dict[str, Ledger] = {
        ledger.request.span_id: ledger for trace in answers.traces for ledger in trace.requests
    }
    figures = []
    for place, request in enumerate(answers.slowest):
        if ledger := ledgers.get(request.span_id):
            draw = partial(chart_trace.waterfall, ledger, f"trace-{place}")
            failed = " · failed" if request.status_code == STATUS_ERROR else ""
            said = f"{request.input_tokens:,} tokens in, {request.output_tokens:,} out{failed}"
            title = f"{units.duration(request.e2e_ns)} · {svg.short(request.model or UNKNOWN, 40)} · {said}"
            began = f"{clock(datetime_ns(request.start))} UTC · dashed: first token"
            figures.append(figure(draw, title, f"{began} · tailspan trace {request.trace_id}"))
    rows = [
        [
            words(request.trace_id),
            Cell(clock(datetime_ns(request.start)), exact(datetime_ns(request.start)), "ns since 1970"),
            time(request.e2e_ns),
            time(request.ttft_ns),
            number(request.input_tokens),
            number(request.output_tokens),
            words(request.dominant_stage, stage_class(request.dominant_stage)),
            share(request.dominant_ratio, 0),
            words(request.service),
            words(request.instance),
            words(request.model),
        ]
        for request in answers.slowest
    ]
    columns = ("trace", "began (UTC)", "e2e", "TTFT", "in", "out", "slow in", "share", "service", "instance", "model")
    first = answers.slowest[0]
    answer = (
        f"The slowest request took {units.duration(first.e2e_ns)}, {units.percent_text(first.dominant_ratio)} of it in "
        f"{first.dominant_stage}."
    )
    return Section(
        "slowest",
        "The slowest requests",
        answer,
        tuple(figures),
        tables=(table("Slowest requests", columns, rows),),
        commands=(command(f"slowest -n {len(rows)}", answers.window, answers.filters),),
    )
