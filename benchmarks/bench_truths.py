"""How often the commands find what is planted in traffic, and how often they say so where nothing is.

Each repetition makes two hours of the real arrivals for a service (`benchmarks.traffic`), with new seeds, and plants
one truth from the second hour on. The decisions are the commands' own code: `compare`, `regress.judge`,
`different.judge`, `fairness` and the diagnosis of `tail`; what their queries would return is computed from the records
with NumPy (`benchmarks.traffic.aggregates`). Beside each stands how often the same decision falls on the same requests
without the truth. Intervals are Wilson's, 95 %.

Each hour is about one round of an arrival trace, so that two hours are more alike than they are in production:
`bench_regress` draws its hours in stretches of five minutes, through an engine that drifts, and its false alarms are
the ones to believe. The goals hold for the largest size; a share of false alarms may exceed 5 % by two standard errors.
TAILSPAN_BENCH_REPETITIONS sets another number of repetitions, TAILSPAN_BENCH_TRUTHS repeats only these truths, such as
`starved,even`. Without the traces nothing is measured, which is said.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.result import Result
from benchmarks.traffic import arrivals
from benchmarks.traffic.fleet import FLEET
from benchmarks.truths_decisions import REPEATED, Outcome
from tailspan.errors import UserError
from tailspan_queries.regress import FALSE_ALARMS

REPETITIONS = 200
SIZES = (2_000, 10_000, 40_000)
"""Requests of the service in each of the two hours."""
NORMAL_95 = 1.96
SLACK_ERRORS = 2.0
CHUNK = 10
"""Repetitions that a process does in one go."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a command says, of which truth, and the shares that it is held to."""

    truth: str
    text: str
    least_found: float | None = None
    most_found: float | None = None
    most_false: float | None = FALSE_ALARMS


DECISIONS: Mapping[str, Decision] = {
    "slow_worker.tail": Decision("slow-worker", "tail: tokenize makes the tail", 0.8),
    "slow_worker.different": Decision("slow-worker", "different: names the worker", 0.8),
    "tail_worse.compare": Decision("tail-worse", "compare: median improved, tail got worse", 0.8),
    "mix_shift.told": Decision("mix-shift", "compare: tells what the mix moved", 0.8, most_false=None),
    "mix_shift.moved": Decision("mix-shift", "compare: end-to-end P50 better or worse", most_found=FALSE_ALARMS),
    "mix_shift.moved_p99": Decision("mix-shift", "compare: end-to-end P99 better or worse", most_found=FALSE_ALARMS),
    "mix_shift.unadjusted": Decision("mix-shift", "the same of P50 with --no-adjust"),
    "mix_shift.regress": Decision("mix-shift", "regress: alarm", most_found=FALSE_ALARMS),
    "starved.fairness": Decision("starved", "fairness: the P99 of the class has risen", 0.8),
    "starved.median": Decision("starved", "fairness: and the median of all fell, where it did", 0.8),
    "shift_12.regress": Decision("shift-12", "regress: alarm, prefill", 0.8),
    "shift_12.compare": Decision("shift-12", "compare: prefill P99 worse"),
    "shift_8.regress": Decision("shift-8", "regress: alarm, prefill", most_found=0.5),
    "shift_8.compare": Decision("shift-8", "compare: prefill P99 worse"),
    "control.regress": Decision("control", "regress: alarm"),
    "control.compare": Decision("control", "compare: end-to-end P99 better or worse"),
    "control.different": Decision("control", "different: an attribute without effect"),
    "control.fairness": Decision("control", "fairness: a P99 has risen"),
}


Counts = Counter[tuple[str, bool]]


def count(size: int, seeds: Sequence[int]) -> tuple[Counts, Counts]:
    """Return how often each decision fell with the truth (True) and without, and how often it was asked for."""
    fell, asked = Counts(), Counts()
    for seed in seeds:
        for repeat in chosen():
            for key, outcome in repeat(size, seed).items():
                for planted, said in zip((True, False), outcome, strict=True):
                    if said is not None:
                        fell[key, planted] += said
                        asked[key, planted] += 1
    return fell, asked


def chosen() -> list[Callable[[int, int], Outcome]]:
    """Return what is repeated.

    Raises: UserError for a name that is none of `REPEATED`.
    """
    names = [name for name in os.environ.get("TAILSPAN_BENCH_TRUTHS", "").split(",") if name] or list(REPEATED)
    if unknown := [name for name in names if name not in REPEATED]:
        raise UserError(
            f"TAILSPAN_BENCH_TRUTHS names no truth: {', '.join(unknown)}", f"Name some of {', '.join(REPEATED)}"
        )
    return [REPEATED[name] for name in names]


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    square = NORMAL_95**2 / count
    middle = (hits / count + square / 2) / (1 + square)
    half = NORMAL_95 / (1 + square) * math.sqrt(hits / count * (1 - hits / count) / count + square / count / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


def measure(repetitions: int, sizes: Sequence[int] = SIZES) -> dict[int, tuple[Counts, Counts]]:
    """Repeat, in as many processes as there are cores; the sizes have seeds of their own.

    Raises: UserError as `chosen` does.
    """
    chosen()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    tasks = [
        (size, [size * 10_000 + number for number in range(first, min(first + CHUNK, repetitions))])
        for size in sorted(sizes, reverse=True)
        for first in range(0, repetitions, CHUNK)
    ]
    found = {size: (Counts(), Counts()) for size in sizes}
    cores = len(os.sched_getaffinity(0))
    # Anew, not forked: threads of NumPy do not live on in a fork.
    with ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool:
        counted = [(size, pool.submit(count, size, seeds)) for size, seeds in tasks]
        for size, future in counted:
            for total, part in zip(found[size], future.result(), strict=True):
                total.update(part)
    return found


def table(found: Mapping[int, tuple[Counts, Counts]]) -> Table:
    """Draw the shares with their intervals for people."""
    drawn = Table("truth", "decision", title="how often the decision falls, %", title_justify="left")
    for size in found:
        drawn.add_column(f"{size:,} an hour", justify="right")
        drawn.add_column("without", justify="right")
    for key, decision in DECISIONS.items():
        if not any(asked[key, planted] for _, asked in found.values() for planted in (True, False)):
            continue
        cells = [share(*found[size], (key, planted)) for size in found for planted in (True, False)]
        drawn.add_row(decision.truth, decision.text, *cells)
    return drawn


def share(fell: Counts, asked: Counts, which: tuple[str, bool]) -> str:
    """Return a share with its interval, in percent."""
    if not asked[which]:
        return ""
    low, high = wilson(fell[which], asked[which])
    return f"{fell[which] / asked[which]:.1%} ({low * 100:.0f}-{high * 100:.0f})".replace("%", "")


def results(found: Mapping[int, tuple[Counts, Counts]]) -> list[Result]:
    """Return the shares that are held to something, at the largest size."""
    fell, asked = found[max(found)]
    rows = []
    for key, decision in DECISIONS.items():
        with_truth, without = (key, True), (key, False)
        slack = SLACK_ERRORS * math.sqrt(FALSE_ALARMS * (1 - FALSE_ALARMS) / max(asked[without], asked[with_truth], 1))
        if decision.least_found is not None and asked[with_truth]:
            value = fell[with_truth] / asked[with_truth]
            rows.append(Result(f"truths.{key}.found", value, "ratio", decision.least_found, higher_is_better=True))
        if decision.most_found is not None and asked[with_truth]:
            most = decision.most_found + (slack if decision.most_found == FALSE_ALARMS else 0.0)
            rows.append(Result(f"truths.{key}.ignored_not", fell[with_truth] / asked[with_truth], "ratio", most))
        if decision.most_false is not None and asked[without]:
            most = decision.most_false + slack
            rows.append(Result(f"truths.{key}.false_alarms", fell[without] / asked[without], "ratio", most))
    return rows


def run() -> list[Result]:
    """Measure if the traces are there."""
    try:
        for service in FLEET:
            arrivals.load(service.trace)
    except UserError as error:
        print(f"truths: nothing is measured: {error}", file=sys.stderr)
        return []
    found = measure(int(os.environ.get("TAILSPAN_BENCH_REPETITIONS") or REPETITIONS))
    Console(stderr=True, width=150).print(table(found))
    return results(found)
