"""What would happen: recorded requests replayed through a model of the engine's scheduler, with something changed.

In: a client, a window, filters, a `Change`. Out: `WhatIf`.
The replay of what was recorded comes first: how far it is off says how much a prediction is worth.
Errors: `UserError` if it is off by more than `REFUSED` at the median or P99 of end-to-end time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tailspan.errors import UserError
from tailspan_queries import units
from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.layers_contribution import ask
from tailspan_queries.layers_speedup import parse_speedup, predict
from tailspan_queries.times import Window
from tailspan_queries.whatif_fit import fit
from tailspan_queries.whatif_limits import LEAST_STEPS
from tailspan_queries.whatif_measures import MEASURES, Measure, known, mean, value_of
from tailspan_queries.whatif_read import DEFAULT_LIMIT, Recording, read, total
from tailspan_queries.whatif_records import UNKNOWN, Base, Change, EngineModel
from tailspan_queries.whatif_replay import Times, amdahl, measured, replay, together

SEEDS = 5
WARNED, REFUSED = 0.1, 0.5
FOR_P99 = 100
JUDGED = ("e2e P50", "e2e P99")


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A prediction; without measures there was nothing to replay, and the notes say why."""

    window: Window
    filters: Filters
    change: Change
    requests: int
    models: tuple[EngineModel, ...]
    measures: tuple[Measure, ...]
    seeds: int
    notes: tuple[str, ...] = ()

    def measure(self, name: str) -> Measure:
        """Return one of the measures by its name."""
        return next(found for found in self.measures if found.name == name)

    @property
    def error_ratio(self) -> float:
        """How far the replay is off, at worst, at the median and P99 of end-to-end time."""
        return max((abs(found.error_ratio or 0.0) for found in self.measures if found.name in JUDGED), default=0.0)


def what_if(
    client: Client,
    window: Window,
    filters: Filters = ALL,
    change: Change | None = None,
    *,
    seeds: int = SEEDS,
    limit: int = DEFAULT_LIMIT,
    base: Base = UNKNOWN,
    force: bool = False,
) -> WhatIf:
    """Read, fit, replay as it was and with the change.

    `base` is what the engine's limits were while the requests were recorded, where that is known.

    Raises: UserError as the module says, unless forced, and as `with_layers` does.
    """
    report = prepared(client, window, filters, seeds=seeds, limit=limit, base=base)
    if not report.requests:
        return report
    report = predicted(replace(report, change=with_layers(client, window, filters, change or Change())))
    if not force:
        check(report)
    return report


def prepared(
    client: Client, window: Window, filters: Filters, *, seeds: int, limit: int, base: Base = UNKNOWN
) -> WhatIf:
    """Read and fit; nothing is replayed yet."""
    recording = read(client, window, filters, limit)
    models, notes = fit_engines(recording, base)
    requests = total([model.requests for model in models])
    return WhatIf(window, filters, Change(), requests, models if requests else (), (), seeds, notes)


def check(report: WhatIf) -> None:
    """Refuse a prediction that is worth nothing.

    Raises: UserError as the module says.
    """
    if report.error_ratio > REFUSED:
        raise UserError(
            f"the replay of what was recorded is off by {units.percent_text(report.error_ratio)}, too far to predict",
            "Choose a window in which the engine's settings did not change, or give its limits (--base-batch, "
            "--base-step-tokens); --force shows the prediction anyhow",
        )


def fit_engines(recording: Recording, base: Base) -> tuple[tuple[EngineModel, ...], tuple[str, ...]]:
    """Return the models of all engines with enough steps, and what to know about them."""
    models, notes = [], []
    engines_of: dict[str, list[str]] = {}
    for requests in recording.requests:
        steps = recording.steps.get(requests.engine)
        if steps is None or len(steps.step) < LEAST_STEPS:
            name = requests.name or "without a name"
            notes.append(f"{len(requests):,} requests of engine {name} are left out: too few of its steps are recorded")
            continue
        model = fit(requests, steps, recording.extents[requests.engine], base)
        models.append(model)
        for note in model.notes:
            engines_of.setdefault(note, []).append(requests.name)
    notes += [f"{named(names, len(models))}{note}" for note, names in engines_of.items()]
    if recording.is_cut:
        notes.append(f"only the latest {recording.kept:,} requests of the window are replayed (--requests)")
    if recording.repeated:
        notes.append(
            f"{recording.repeated:,} requests were not stored (sampling): copies of others stand for them, at arrivals "
            "that are made up"
        )
    return tuple(models), tuple(notes)


def named(engines: Sequence[str], all_engines: int) -> str:
    """Say which engines a note is about; nothing if there is only one engine."""
    if all_engines == 1:
        return ""
    return f"{', '.join(engines)}: " if len(engines) <= 2 else f"{len(engines)} of {all_engines} engines: "


def predicted(report: WhatIf, plain: Sequence[Times] = ()) -> WhatIf:
    """Replay as it was (unless `plain` holds that already) and with the change, for each seed, and compare."""
    models, change = report.models, report.change
    was = together([(model.requests, measured(model.requests)) for model in models])
    bound = together([(model.requests, amdahl(model.requests, change)) for model in models])
    plain = plain or [replay_all(models, Change(), seed) for seed in range(report.seeds)]
    # The same noise in both: what differs is the change.
    changed = plain if change == Change() else [replay_all(models, change, seed) for seed in range(report.seeds)]
    measures = []
    for name, field, quantile in MEASURES:
        values = known([value_of(getattr(times, field), quantile) for times in changed])
        measures.append(
            Measure(
                name=name,
                measured_ns=value_of(getattr(was, field), quantile),
                model_ns=mean(known([value_of(getattr(times, field), quantile) for times in plain])),
                predicted_ns=mean(values),
                low_ns=min(values, default=None),
                high_ns=max(values, default=None),
                amdahl_ns=value_of(getattr(bound, field), quantile) if change.is_only_speedup else None,
            )
        )
    return replace(report, measures=tuple(measures), notes=(*report.notes, *drain_note(models, plain, changed)))


def replay_all(models: Sequence[EngineModel], change: Change, seed: int) -> Times:
    """Replay all engines with one seed."""
    return together([(model.requests, replay(model, change, seed)) for model in models])


def drain_note(models: Sequence[EngineModel], plain: Sequence[Times], changed: Sequence[Times]) -> list[str]:
    """Say if the change overloads the engine: work is left over at the end, and grows with the window."""
    span_ns = max(float(np.ptp(model.requests.arrival_ns)) for model in models)
    before, after = (max(times.drain_ns for times in part) for part in (plain, changed))
    if after <= 2 * before or after <= 0.1 * span_ns:
        return []
    return [
        f"the engine cannot keep up: {units.duration(after)} of work are left after the last arrival "
        f"({units.duration(before)} without the change); in a longer window the times would be longer still"
    ]


def with_layers(client: Client, window: Window, filters: Filters, change: Change) -> Change:
    """Turn faster parts of the model into how much faster prefill and decode become.

    Raises: UserError if no layer was timed, or a part is not among them.
    """
    if not change.layers:
        return change
    speedups = [parse_speedup(text) for text in change.layers]
    rows = ask(client, {**window.parameters, **filters.parameters}, "part")
    # The two means of a prediction are used for the two stages.
    stages = [replace(row, mean_ns=row.prefill_mean_ns, tail_mean_ns=row.decode_mean_ns) for row in rows]
    whole = next((row for row in stages if row.what == "request"), None)
    if whole is None or not any(row.what == "part" for row in rows):
        raise UserError(
            "no layer was timed in the steps of these requests",
            "`tailspan doctor` says whether workers time them (TAILSPAN_LAYER_BUDGET above 0)",
        )
    found = predict(stages, whole, speedups)
    return replace(
        change,
        layer_prefill=1 / (1 + found.mean_change_ratio),
        layer_decode=1 / (1 + found.tail_change_ratio),
    )
