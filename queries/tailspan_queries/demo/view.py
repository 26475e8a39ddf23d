"""What the demo prints: stages, the scheduler's work, the model's parts, the slowest trace, the proof, what to do next.

JSON, stable: `requests`, `failed`, `traces`, `exactly_one_trace`, `unattributed_ratio` {p50, p99}, `client_agreement`
{ttft_ratio_p99, e2e_ratio_p99, holds, ttft, e2e, ...} and the rest of `Agreement`; `stages`, `tail`, `diagnosis`,
`cautions` as in `tailspan stages --format json`; `layers` as in `tailspan layers --e2e --format json`; `slowest` as in
`tailspan trace --format json`; `engine` (its name and what its scheduler did, the columns of `scheduling.sql`); `load`
(how it was made) and `data` (where the spans are).
"""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tailspan_queries import units
from tailspan_queries.demo.agreement import LIMIT_NS, LIMIT_RATIO, Agreement, Comparison
from tailspan_queries.demo.processes import script
from tailspan_queries.demo.scheduling_view import scheduling_sentences
from tailspan_queries.demo.session import DemoResult
from tailspan_queries.layers_contribution import diagnose as diagnose_parts
from tailspan_queries.layers_contribution_view import contribution_json, contribution_table
from tailspan_queries.stages_view import render_stages, stages_json
from tailspan_queries.traces_view import render_trace, trace_json

DEFAULT_DATA = Path(".tailspan")


def render_demo(result: DemoResult, width: int) -> RenderableType:
    """Return everything that a person sees at the end of the demo."""
    parts: list[RenderableType] = [Text("\nWhere the time of the requests went", style="bold underline")]
    parts.append(render_stages(result.reports.stages))
    parts.append(Text("\nWhat the engine did", style="bold underline"))
    parts += [Text(sentence) for sentence in scheduling_sentences(result.engine, result.reports.scheduling)]
    if result.reports.contribution.parts:
        parts += [
            Text("\nWhich parts of the model, and what else, a request's time went to", style="bold underline"),
            contribution_table(result.reports.contribution, None),
            Text(),
            Text(diagnose_parts(result.reports.contribution), style="bold"),
        ]
    if result.reports.slowest is not None:
        parts += [Text("\nThe slowest request", style="bold underline"), render_trace(result.reports.slowest, width)]
    parts += [Text("\nThe client's clock against the traces", style="bold underline"), proof(result.agreement)]
    parts += [Text(f"! a request failed: {error}", style="bold red") for error in result.errors]
    parts += [Text("\nNext", style="bold underline"), Text(next_commands(result))]
    return Group(*parts)


def proof(agreement: Agreement) -> RenderableType:
    """Return the comparison as two sentences and a table."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("client vs trace", no_wrap=True, min_width=14)
    for name in ("requests", "p50", "p99", "max", "p50", "p99", "max", "outside"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, comparison in (("TTFT", agreement.ttft), ("end to end", agreement.e2e)):
        table.add_row(name, *comparison_cells(comparison))
    return Group(
        Text(count_sentence(agreement), style="" if agreement.exactly_one_trace == agreement.requests else "bold red"),
        Text(unattributed_sentence(agreement)),
        Text(begin_sentence(agreement)),
        Text(),
        table,
        Text(f"outside = off by more than {units.duration(LIMIT_NS)} and more than {LIMIT_RATIO:.0%}", style="dim"),
    )


def count_sentence(agreement: Agreement) -> str:
    """Say whether every request sent has exactly one trace."""
    sentence = f"{agreement.exactly_one_trace:,} of {agreement.requests:,} requests sent have exactly one trace"
    found = [
        f"{len(traces):,} {what}: {', '.join(traces[:3])}{' …' if len(traces) > 3 else ''}"
        for what, traces in (("without a trace", agreement.missing), ("with more than one", agreement.doubled))
        if traces
    ]
    if agreement.strangers:
        found.append(f"{agreement.strangers:,} traces that the client did not ask for")
    return "; ".join([sentence, *found]) + "."


def unattributed_sentence(agreement: Agreement) -> str:
    """Say how much of the client's time the stages do not explain, and what was taken off for the network."""
    return (
        "Of the client's end-to-end time, less one network round trip (the TCP handshake, "
        f"{units.duration(agreement.network_ns_p50)} at the median), the stages leave "
        f"{units.percent(agreement.unattributed_ratio_p50, 2)} unexplained at the median "
        f"and {units.percent(agreement.unattributed_ratio_p99, 2)} at p99; no two stages overlap by more than "
        f"{units.duration(agreement.overlap_ns_max)}."
    )


def begin_sentence(agreement: Agreement) -> str:
    """Say how long after the client's send the traces begin."""
    return (
        f"Traces begin {units.duration(agreement.begin_ns_p50)} after the client's send at the median, "
        f"{units.duration(agreement.begin_ns_max)} at most."
    )


def comparison_cells(comparison: Comparison) -> list[str]:
    """Return the cells of one kind of time."""
    times = (comparison.difference_ns_p50, comparison.difference_ns_p99, comparison.difference_ns_max)
    ratios = (comparison.ratio_p50, comparison.ratio_p99, comparison.ratio_max)
    return [
        f"{comparison.count:,}",
        *(units.duration(value) for value in times),
        *(units.percent(value, 2) for value in ratios),
        f"{comparison.outside:,}",
    ]


def next_commands(result: DemoResult) -> str:
    """Return the commands that look at the same data again."""
    since = f"--since {result.window.as_json()['since']}"
    data = "" if result.options.data == DEFAULT_DATA.absolute() else f" --data {shlex.quote(str(result.options.data))}"
    tailspan = command_name()
    lines = [
        f"The spans are kept in {result.options.data}. To look at them again, leave this running:",
        f"  {tailspan} up{data}",
        "and, in another terminal:",
        f"  {tailspan} stages {since}",
        f"  {tailspan} slowest {since}",
        f"  {tailspan} layers --speedup attention=1.3 {since}",
        f"  {tailspan} interference {since}",
        f"  {tailspan} engine {since}",
        f"  {tailspan} export --perfetto {since}",
    ]
    if result.reports.scheduling.evictions:
        lines.append(f"  {tailspan} preemption {since}")
    if result.reports.slowest is not None:
        lines.append(f"  {tailspan} trace {result.reports.slowest.trace_id}")
    return "\n".join(lines)


def command_name() -> str:
    """Return what to type for this `tailspan`: its name when the shell finds it, else the path from here."""
    beside = script("tailspan")
    if shutil.which("tailspan") == beside:
        return "tailspan"
    return shlex.quote(os.path.relpath(beside))


def demo_json(result: DemoResult) -> dict[str, Any]:
    """Return the one object of `tailspan demo --json`."""
    report = stages_json(result.reports.stages)
    return {
        **result.agreement.as_json(),
        "errors": list(result.errors),
        "window": report["window"],
        "stages": report["stages"],
        "tail": report["tail"],
        "diagnosis": report["diagnosis"],
        "cautions": report["cautions"],
        "slowest": trace_json(result.reports.slowest) if result.reports.slowest else None,
        "layers": contribution_json(result.reports.contribution),
        "engine": {"name": result.engine, **asdict(result.reports.scheduling)},
        "load": {
            "seed": result.options.seed,
            "rate_per_s": result.options.rate_per_s,
            "duration_s": result.load_s,
        },
        "data": str(result.options.data),
    }
