"""The prediction for people (rich), programs (JSON) and spreadsheets (CSV).

JSON, stable: `window`, `filters`, `change` {every field of `Change` that is set}, `requests`, `seeds`, `error_ratio`
(the larger one of the replay at P50 and P99 of end-to-end time), `engines` [{name, requests, limits, cost,
explained_ratio}], `measures` [{name, measured_ns, model_ns, predicted_ns, low_ns, high_ns, amdahl_ns, error_ratio,
change_ratio}], `diagnosis`, `notes`. `model_ns` is the replay without the change, `low_ns` to `high_ns` the range of
the prediction over the seeds; infinite limits are null. CSV: the measures, one a line.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tailspan_queries import units
from tailspan_queries.breakdown import headline, new_table, plural
from tailspan_queries.layers_speedup import moved
from tailspan_queries.whatif import FOR_P99, JUDGED, WARNED, WhatIf
from tailspan_queries.whatif_measures import Measure
from tailspan_queries.whatif_records import Change, EngineModel

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

COLUMNS = ("measured", "replayed", "off", "predicted", "range", "change", "Amdahl")
SMALL_NS = 1e6
"""Times below this are not compared as a ratio: of hardly anything every change is large."""
MOST_ENGINES = 3
KEYS = ("measured_ns", "model_ns", "error_ratio", "predicted_ns", "low_ns", "high_ns", "change_ratio", "amdahl_ns")


def render_what_if(report: WhatIf) -> RenderableType:
    """Return the table with the sentence and the notes under it."""
    from rich.console import Group
    from rich.text import Text

    return Group(
        Text(headline(plural(report.requests, "request"), report.window, report.filters), style="bold"),
        *(Text(model_text(model)) for model in report.models[:MOST_ENGINES]),
        *([Text(f"and {len(report.models) - MOST_ENGINES} more engines")] * (len(report.models) > MOST_ENGINES)),
        Text(),
        measure_table(report),
        *(Text(line, style="dim") for line in legend(report)),
        Text(),
        Text(diagnose(report), style="bold"),
        *(Text(f"! {line}", style="yellow") for line in cautions(report)),
    )


def model_text(model: EngineModel) -> str:
    """Say what an engine is taken to be."""
    cost, limits = model.cost, model.limits
    parts = [f"{units.duration(cost.base)} a step"]
    parts += [f"{units.duration(cost.request)} a decode"] * bool(cost.request)
    parts += [f"{units.duration(cost.context * 1000)} per 1,000 tokens held"] * bool(cost.context)
    parts += [f"{units.duration(cost.start)} with prompts"] * bool(cost.start)
    parts += [f"{units.duration(cost.token)} a prompt token"] * bool(cost.token)
    batch = "no limit of the batch" if limits.max_batch == float("inf") else f"batch {limits.max_batch:,.0f}"
    held = [batch, f"{limits.max_tokens:,.0f} tokens a step"]
    if limits.kv_tokens != float("inf"):
        held.append(f"KV cache {units.count(limits.kv_tokens)} tokens")
    return (
        f"engine {model.requests.name}: {', '.join(held)}; {' + '.join(parts)} "
        f"(explains {units.percent_text(max(model.explained_ratio, 0.0))} of the variance)"
    )


def measure_table(report: WhatIf) -> Table:
    """Return a line for each measure; columns that say nothing are left out."""
    changed = report.change != Change()
    shown = [title for title in COLUMNS if changed or title in COLUMNS[:3]]
    if not report.change.is_only_speedup:
        shown = [title for title in shown if title != "Amdahl"]
    table = new_table("", *shown)
    for found in report.measures:
        table.add_row(found.name, *(cell(found, title) for title in shown))
    return table


def legend(report: WhatIf) -> list[str]:
    """Say what the columns are."""
    if report.change == Change():
        return ["replayed: the recorded requests through the model; off: how far that is from what was measured"]
    return [
        "replayed: nothing changed; off: the model's error; range: lowest and highest of "
        f"{plural(report.seeds, 'replay')}"
    ]


def cell(found: Measure, title: str) -> str:
    """Return one cell."""
    match title:
        case "off":
            return signed(found.error_ratio, found.measured_ns)
        case "change":
            return signed(found.change_ratio, found.model_ns)
        case "range" if found.low_ns is not None:
            return f"{units.duration(found.low_ns)} to {units.duration(found.high_ns)}"
    named = {
        "measured": found.measured_ns,
        "replayed": found.model_ns,
        "predicted": found.predicted_ns,
        "Amdahl": found.amdahl_ns,
    }
    return units.duration(named.get(title))


def signed(ratio: float | None, reference_ns: float | None) -> str:
    """Return a relative difference with its sign; a dash if the reference is next to nothing."""
    if ratio is None or reference_ns is None or reference_ns < SMALL_NS:
        return units.ABSENT
    return units.signed(ratio)


def change_text(change: Change) -> str:
    """Say what would be different."""
    said = [f"{stage} {factor:g} times as fast" for stage, factor in change.speedups]
    said += [f"{text.partition('=')[0]} {text.partition('=')[2]} times as fast" for text in change.layers]
    said += [f"batch of {change.batch}"] * bool(change.batch)
    said += [f"{change.step_tokens} tokens a step"] * bool(change.step_tokens)
    factors = (
        ("KV cache", change.kv_cache),
        ("arrival rate", change.arrivals),
        ("prompt lengths", change.prompt_tokens),
        ("output lengths", change.output_tokens),
    )
    said += [f"{name} times {factor:g}" for name, factor in factors if factor != 1]
    if change.prompt_cache is not None:
        said.append(f"{units.percent_text(change.prompt_cache)} of each prompt cached")
    return ", ".join(said)


def diagnose(report: WhatIf) -> str:
    """Return the answer in a sentence."""
    median, tail = report.measure("e2e P50"), report.measure("e2e P99")
    if report.change == Change():
        return f"The replay is off by {units.percent_text(report.error_ratio)} at worst, at P50 or P99 of end to end."
    said = (
        f"{change_text(report.change)}: end-to-end P50 {moved(median.change_ratio or 0.0)}, "
        f"P99 {moved(tail.change_ratio or 0.0)}"
    )
    if report.change.is_only_speedup and median.measured_ns and tail.measured_ns:
        bounds = [(part.amdahl_ns or 0.0) / (part.measured_ns or 1.0) - 1 for part in (median, tail)]
        said += f". Amdahl's law, which leaves the queue as it is: P50 {moved(bounds[0])}, P99 {moved(bounds[1])}"
    return f"{said}."


def cautions(report: WhatIf) -> list[str]:
    """Return what a reader must know before trusting the numbers."""
    found = list(report.notes)
    if report.error_ratio > WARNED:
        found.insert(
            0,
            f"the replay of what was recorded is off by {units.percent_text(report.error_ratio)}: take the change, not "
            "the times, and that with care",
        )
    small = [part.name for part in report.measures if part.name in JUDGED and is_within_error(part)]
    if report.change != Change() and small:
        found.append(f"{' and '.join(small)}: changed by less than the replay is off, which may be nothing")
    if report.requests < FOR_P99:
        found.append(f"only {plural(report.requests, 'request')}: P99 rests on the slowest few")
    return found


def is_within_error(found: Measure) -> bool:
    """Return whether a predicted change is smaller than the error of the replay."""
    return abs(found.change_ratio or 0.0) < abs(found.error_ratio or 0.0)


def what_if_json(report: WhatIf) -> dict[str, Any]:
    """Return the report as the module says."""
    same = asdict(Change())
    return {
        "window": report.window.as_json(),
        "filters": report.filters.parameters,
        "change": {name: value for name, value in asdict(report.change).items() if value != same[name]},
        "requests": report.requests,
        "seeds": report.seeds,
        "error_ratio": report.error_ratio if report.measures else None,
        "engines": [
            {
                "name": model.requests.name,
                "requests": int(model.requests.counted.sum()),
                "limits": asdict(model.limits),
                "cost": asdict(model.cost),
                "explained_ratio": model.explained_ratio,
            }
            for model in report.models
        ],
        "measures": [found.as_json() for found in report.measures],
        "diagnosis": diagnose(report) if report.measures else "",
        "notes": cautions(report) if report.measures else list(report.notes),
    }


def what_if_csv(report: WhatIf) -> tuple[list[str], list[list[Any]]]:
    """Return header and lines of the CSV form."""
    return ["name", *KEYS], [[found.name, *(getattr(found, key) for key in KEYS)] for found in report.measures]
