"""What layers contribute to requests of made-up engines, against a walk over the steps."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest

from tailspan import attributes
from tailspan.errors import UserError
from tailspan_queries.client import Client
from tailspan_queries.filters import Filters
from tailspan_queries.layers_contribution import cautions, contribution_report
from tailspan_queries.layers_records import Contribution, Speedup
from tailspan_queries.layers_speedup import parse_speedup
from tailspan_queries.times import Window
from tests.queries import engine_traffic, traffic
from tests.queries.layer_parts import Part, summed
from tests.queries.layer_traffic import DeviceStep, LayeredEngine

pytestmark = pytest.mark.usefixtures("ask_once")


def shares(item: LayeredEngine, by: str) -> dict[str, dict[Part, float]]:
    """Return what each line is of the device time of the sampled steps, by phase."""
    found: dict[str, dict[Part, float]] = {}
    for phase in ("prefill", "decode"):
        totals: dict[Part, float] = {}
        for step in item.sampled:
            if step.phase == phase:
                for line, ns in summed(step, by).items():
                    totals[line] = totals.get(line, 0.0) + ns * step.counts
        found[phase] = {line: ns / sum(totals.values()) for line, ns in totals.items()}
    return found


def costs(item: LayeredEngine) -> dict[int, tuple[DeviceStep, int]]:
    """Return each stored step and what it cost: from the later of its begin and the end of the one before it."""
    found, previous_ns = {}, 0
    for timed in item.steps:
        step = timed.step
        found[step.number] = timed, max(step.end_ns - max(step.begin_ns, previous_ns), 0)
        previous_ns = step.end_ns
    return found


Line = tuple[str, str, int | None, str]


def ledgers_of(item: LayeredEngine, by: str) -> list[dict[Line, dict[str, float]]]:
    """Return the ledger of each request of an engine."""
    known, parts = costs(item), shares(item, by)
    return [ledger(known, parts, request) for request in engine_traffic.requests_of(item.engine)]


def ledger(
    known: dict[int, tuple[DeviceStep, int]], parts: dict[str, dict[Part, float]], request: traffic.Request
) -> dict[Line, dict[str, float]]:
    """Walk over the stages of a request and their steps; return ns by line and stage."""
    found: dict[Line, dict[str, float]] = {}

    def add(line: Line, stage: str, ns: float) -> None:
        found.setdefault(line, {}).setdefault(stage, 0.0)
        found[line][stage] += ns

    for stage in request.stages:
        add(("request", "", None, ""), stage.name, stage.wall_ns)
        if attributes.STEP_FIRST not in stage.extra:
            add(("stage", stage.name, None, ""), stage.name, stage.wall_ns)
            continue
        between = float(stage.wall_ns)
        numbers = range(int(stage.extra[attributes.STEP_FIRST]), int(stage.extra[attributes.STEP_LAST]) + 1)
        for timed, cost in (known[number] for number in numbers if number in known):
            weight = timed.step.weight
            between -= weight * cost
            if timed.busy_ns < 0:
                add(("untimed", "", None, ""), stage.name, weight * cost)
                continue
            device = min(timed.busy_ns, cost)
            add(("host", "", None, ""), stage.name, weight * (cost - device))
            for (layer, kind), share in parts[timed.phase].items():
                add(("part", "", layer, kind), stage.name, weight * device * share)
            if not parts[timed.phase]:
                add(("unsampled", "", None, ""), stage.name, weight * device)
        add(("between", "", None, ""), stage.name, between)
    return found


def added(ledgers: Iterable[dict[Line, dict[str, float]]]) -> dict[tuple[Line, str], float]:
    """Return the time of each line over requests, by stage; those of all stages together have the name ''."""
    found: dict[tuple[Line, str], float] = defaultdict(float)
    for one in ledgers:
        for line, stages in one.items():
            for stage, ns in stages.items():
                found[line, stage] += ns
                found[line, ""] += ns
    return found


@pytest.mark.parametrize("by", ["kind", "layer", "part"])
@pytest.mark.parametrize("model", ["", "llama-6", "llama-eager", "smol-6", "qwen-6"])
def test_contributions_are_those_of_a_walk_over_the_steps(
    client: Client, layered: list[LayeredEngine], layer_window: Window, by: str, model: str
) -> None:
    """Every line, by stage and at the tail, is what a walk over each request's steps finds, and they sum to e2e."""
    served = [item for item in layered if model in ("", item.engine.model)]
    ledgers = [one for item in served for one in ledgers_of(item, by)]
    e2e = np.array([request.e2e_ns for item in served for request in engine_traffic.requests_of(item.engine)])
    slow = e2e >= np.percentile(e2e, 99)
    whole, tail = added(ledgers), added(one for one, is_slow in zip(ledgers, slow, strict=True) if is_slow)
    report = contribution_report(client, layer_window, Filters(model=model), by)
    lines = {line for (line, stage), ns in whole.items() if not stage and ns}
    assert {(row.what, row.stage, row.layer, row.kind) for row in report.rows} == lines
    for row in report.rows:
        line = row.what, row.stage, row.layer, row.kind
        assert row.mean_ns == pytest.approx(whole[line, ""] / len(e2e), abs=1)
        assert row.share_ratio == pytest.approx(whole[line, ""] / e2e.sum())
        assert row.prefill_mean_ns == pytest.approx(whole[line, "prefill"] / len(e2e), abs=1)
        assert row.decode_mean_ns == pytest.approx(whole[line, "decode"] / len(e2e), abs=1)
        assert row.tail_mean_ns == pytest.approx(tail[line, ""] / slow.sum(), abs=1)
        assert row.tail_share_ratio == pytest.approx(tail[line, ""] / e2e[slow].sum(), abs=1e-9)
        assert (row.request_count, row.kept_count, row.tail_count) == (len(e2e), len(e2e), slow.sum())
    for share in ("share_ratio", "tail_share_ratio"):
        assert sum(getattr(row, share) for row in report.rows if row.what != "request") == pytest.approx(1)


def test_a_faster_part_shortens_what_it_takes(client: Client, layer_window: Window) -> None:
    """A factor divides the time of what it fits; the more exact of two counts; e2e falls by that and no more."""
    filters = Filters(model="llama-6")
    parts = contribution_report(client, layer_window, filters, "part")
    whole = parts.whole
    assert whole is not None

    def saved(choose: Callable[[Contribution], float]) -> float:
        return sum(row.mean_ns * choose(row) for row in parts.parts)

    def predicted(*texts: str) -> float:
        speedups = [parse_speedup(text) for text in texts]
        report = contribution_report(client, layer_window, filters, "kind", speedups)
        assert report.prediction is not None
        assert report.prediction.tail_mean_ns == pytest.approx(whole.tail_mean_ns)
        assert report.prediction.predicted_tail_mean_ns < report.prediction.tail_mean_ns
        return report.prediction.mean_ns - report.prediction.predicted_mean_ns

    by_kind = saved(lambda row: (1 - 1 / 1.3) * (row.kind == "attention"))
    assert predicted("attention=1.3") == pytest.approx(by_kind)
    assert predicted("3/mlp=2") == pytest.approx(saved(lambda row: 0.5 * ((row.layer, row.kind) == (3, "mlp"))))
    assert predicted("3=2") == pytest.approx(saved(lambda row: 0.5 * (row.layer == 3)))
    both = saved(lambda row: {True: 0.75, False: 0.5}[row.layer == 3] * (row.kind == "mlp"))
    assert predicted("mlp=2", "3/mlp=4") == pytest.approx(both)
    assert predicted("norm=2") == pytest.approx(saved(lambda row: 0.5 * (row.kind == "norm")))


def test_what_the_prediction_leaves_out_is_said(client: Client, layer_window: Window) -> None:
    """Queueing always; launches where they set the pace."""
    speedups = [Speedup(None, "attention", 1.3)]
    graph = contribution_report(client, layer_window, Filters(model="llama-6"), "kind", speedups)
    eager = contribution_report(client, layer_window, Filters(model="llama-eager"), "kind", speedups)
    assert "drain the queue faster" in cautions(graph)[0]
    assert not any("see `tailspan gpu`" in line for line in cautions(graph))
    assert any("see `tailspan gpu`" in line for line in cautions(eager))


def test_steps_that_are_missing_are_said(client: Client, layered: list[LayeredEngine], layer_window: Window) -> None:
    """The share of the named steps that are stored comes with the report; too small, there is a caution."""
    report = contribution_report(client, layer_window, Filters(model="llama-6"))
    assert report.whole is not None
    assert report.whole.covered_ratio == pytest.approx(1)
    fewer = tuple(replace(row, covered_ratio=0.5) for row in report.rows)
    assert any("only 50 % of the steps are stored" in line for line in cautions(replace(report, rows=fewer)))
    # Half of the steps are stored and stand for two each.
    sampled = contribution_report(client, layer_window, Filters(model="smol-6"))
    assert sampled.whole is not None
    assert layered[2].engine.dropped_ratio == 0.5
    assert sampled.whole.covered_ratio == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    "text",
    ["attention", "attention=0", "=2", "12/=2", "attention=x", "a/b=2", "attention=-1", "attention=1.2.3", "1/2=3"],
)
def test_a_speedup_that_does_not_read_is_refused(text: str) -> None:
    """The error shows the form."""
    with pytest.raises(UserError, match=r"does not read\. Write --speedup attention=1\.3"):
        parse_speedup(text)


def test_a_speedup_of_nothing_is_refused(client: Client, layer_window: Window) -> None:
    """A part that no sampled step has is an error that lists those there are."""
    with pytest.raises(UserError, match=r"no sampled step has the part 'mixer'. There are: attention, embedding, lm_"):
        contribution_report(client, layer_window, Filters(model="llama-6"), "kind", [parse_speedup("mixer=2")])


def test_an_empty_window_has_no_contribution(client: Client) -> None:
    """Without requests there are no lines, no prediction and no NaN."""
    empty = Window(traffic.BEGIN_NS - 7200 * 10**9, traffic.BEGIN_NS - 3600 * 10**9)
    report = contribution_report(client, empty, speedups=[Speedup(None, "attention", 2.0)])
    assert (report.whole, report.parts, report.prediction, cautions(report)) == (None, (), None, [])
