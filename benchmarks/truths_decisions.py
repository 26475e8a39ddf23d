"""What the commands decide about one repetition of each planted truth, and about the same requests without it.

The decisions are the commands' own code: `compare`, `regress.judge`, `different.judge`, `fairness` and the diagnosis of
`tail`; what their queries would return is computed from the records with NumPy (`benchmarks.traffic.aggregates`).
In: requests of the service in each of two hours, a seed. Out: of each decision whether it fell.
Errors: `UserError` where the arrival traces are absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.traffic import aggregates
from benchmarks.traffic.fleet import FLEET, Service
from benchmarks.traffic.requests import Traffic, make, plant
from benchmarks.traffic.truths import PLANTED, Change, Mix
from tailspan import attributes as attr
from tailspan_queries import compare_findings, different, tail_diagnosis
from tailspan_queries.compare import compare
from tailspan_queries.compare_records import REQUEST, TTFT, Comparison
from tailspan_queries.fairness import LEAST_FALL
from tailspan_queries.regress import judge

HOURS = 2.0
TRUTHS = {truth.name: truth for truth in PLANTED}
SERVICES = {service.name: service for service in FLEET}
WORKER = (attr.SERVICE_INSTANCE, attr.ENGINE_ID, "host.name")
NOTHING = (*WORKER, "service.version", "app.tenant", attr.LORA, attr.GEN_AI_STREAM)
"""Attributes that have nothing to do with time unless something is planted."""
Outcome = dict[str, tuple[bool | None, bool | None]]
"""For each decision: whether it fell with the truth, and without it; None where that was not asked."""


def traffic(service: Service, size: int, seed: int, *planted: Mix) -> tuple[Traffic, np.ndarray]:
    """Make two hours of a service, with a mix that shifts if one is given."""
    plan = Traffic(2 * size, hours=HOURS, planted=planted, services=(service,), seed=seed)
    return plan, next(make(plan)).records


def changed(plan: Traffic, records: np.ndarray, *names: str) -> np.ndarray:
    """Return the records with truths that change times."""
    copy = records.copy()
    for name in names:
        truth = TRUTHS[name]
        if isinstance(truth, Change):
            plant(plan, truth, copy, 0, np.random.default_rng((plan.seed, len(name))))
    return copy


def compared(plan: Traffic, records: np.ndarray, *, adjust: bool = True) -> Comparison:
    """Compare the hours as `tailspan compare` does."""
    before, after = (aggregates.sample(records, window) for window in aggregates.halves(plan))
    return compare(before, after, adjust=adjust)


def again(base: Comparison, plan: Traffic, records: np.ndarray, *parts: str) -> Comparison:
    """Return what `compared` would, where only these parts differ from `base`: the others keep their lines."""
    after = aggregates.sample(records, aggregates.halves(plan)[1])
    sides = [replace(side, parts={part: side.parts[part] for part in parts}) for side in (base.before, after)]
    lines = (*(line for line in base.lines if line.part not in parts), *compare(sides[0], sides[1]).lines)
    report = Comparison(base.before, after, base.adjusted, base.strata, lines)
    return replace(report, findings=compare_findings.findings(report))


def verdict(report: Comparison, part: str, statistic: str) -> str:
    """Return better, worse or unclear."""
    line = report.line(part, statistic)
    return line.verdict if line else "unclear"


def alarm(report: Comparison, part: str = "") -> bool:
    """Whether `tailspan regress` would alarm, or name a part."""
    return any(not part or found.line.part == part for found in judge(report).regressed)


def named(plan: Traffic, records: np.ndarray, service: Service, attributes: Sequence[str], value: str = "") -> bool:
    """Whether `tailspan different` names one of the attributes, with that value if one is given."""
    found = different.judge(aggregates.different_rows(records, service, 0, plan))[2]
    return any(one.group.attribute in attributes and value in ("", one.group.value) for one in found)


def slow_worker(size: int, seed: int) -> Outcome:
    """A stage of one worker is slow for 2 % of its requests."""
    service = SERVICES["chat"]
    plan, without = traffic(service, size, seed)
    both = changed(plan, without, "slow-worker"), without
    said = [tail_diagnosis.diagnose(aggregates.tail_report(records, plan)) for records in both]
    told = ["made of tokenize" in text or text.startswith("tokenize grows") for text in said]
    found = named(plan, both[0], service, WORKER, f"{service.name}-0"), named(plan, without, service, WORKER)
    return {"slow_worker.tail": (told[0], told[1]), "slow_worker.different": found}


def tail_worse(size: int, seed: int) -> Outcome:
    """The median of decode improves and its P99 gets worse."""
    plan, without = traffic(SERVICES["assistant"], size, seed)
    base = compared(plan, without)
    report = again(base, plan, changed(plan, without, "tail-worse"), "decode", REQUEST)
    loud = [any(text.startswith("THE MEDIAN IMPROVED") for text in one.findings) for one in (report, base)]
    return {"tail_worse.compare": (loud[0], loud[1])}


def mix_shift(size: int, seed: int) -> Outcome:
    """Longer requests come more often and nothing is slower; without the truth it is the control."""
    truth, service = TRUTHS["mix-shift"], SERVICES["code"]
    plan, records = traffic(service, size, seed, *([truth] if isinstance(truth, Mix) else []))
    with_mix = compared(plan, records)
    control_service = nothing_planted()
    control_plan, control_records = traffic(control_service, size, seed)
    control = compared(control_plan, control_records)
    whole = [replace(side, parts={REQUEST: side.parts[REQUEST]}) for side in (with_mix.before, with_mix.after)]
    plain = compare(whole[0], whole[1], adjust=False)

    def moved(report: Comparison, statistic: str) -> bool:
        return verdict(report, REQUEST, statistic) != "unclear"

    return {
        "mix_shift.told": (bool(compare_findings.mix(with_mix)), bool(compare_findings.mix(control))),
        "mix_shift.moved": (moved(with_mix, "p50"), moved(control, "p50")),
        "mix_shift.moved_p99": (moved(with_mix, "p99"), moved(control, "p99")),
        "mix_shift.unadjusted": (moved(plain, "p50"), None),
        "mix_shift.regress": (alarm(with_mix), alarm(control)),
        "control.regress": (None, alarm(control)),
        "control.compare": (None, moved(control, "p99")),
        "control.different": (None, named(control_plan, control_records, control_service, NOTHING)),
    }


def nothing_planted() -> Service:
    """Return a service in which nothing is planted, with as many arrivals of its trace as the one of `mix_shift`."""
    return replace(SERVICES["search"], most_of_trace=SERVICES["code"].most_of_trace)


def even(size: int, seed: int) -> Outcome:
    """Nothing is planted, and all classes wait alike."""
    plan, records = traffic(nothing_planted(), size, seed)
    return {"control.fairness": (None, bool(aggregates.fairness_report(records, plan).risen))}


def starved(size: int, seed: int) -> Outcome:
    """One class waits longer and the others less; whether the median falls by that depends on how long queues are."""
    plan, without = traffic(SERVICES["batch"], size, seed)
    records = changed(plan, without, "starved", "starving")
    report, base = (aggregates.fairness_report(one, plan) for one in (records, without))
    risen = any(one.key == "5" for one in report.risen)
    after = records["start_ns"] >= aggregates.halves(plan)[1].since_ns
    fell = np.median(records["queue_ns"][after]) < (1 - 2 * LEAST_FALL) * np.median(without["queue_ns"][after])
    return {
        "starved.fairness": (risen, bool(base.risen)),
        "starved.median": (risen and report.median_fell if fell else None, bool(base.risen) and base.median_fell),
    }


def shifts(size: int, seed: int) -> Outcome:
    """The P99 of prefill rises by 12 % or by 8 %."""
    plan, without = traffic(SERVICES["summarize"], size, seed)
    base = compared(plan, without)
    found: Outcome = {}
    for key, name in (("shift_12", "shift-12"), ("shift_8", "shift-8")):
        report = again(base, plan, changed(plan, without, name), "prefill", TTFT, REQUEST)
        worse = [verdict(one, "prefill", "p99") == "worse" for one in (report, base)]
        found[f"{key}.regress"] = alarm(report, "prefill"), alarm(base)
        found[f"{key}.compare"] = worse[0], worse[1]
    return found


REPEATED = {repeat.__name__: repeat for repeat in (slow_worker, tail_worse, mix_shift, even, starved, shifts)}
