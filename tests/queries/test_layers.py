"""What the reports about layers say of made-up engines, against NumPy and SciPy."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tailspan import attributes
from tailspan.errors import UserError
from tailspan_queries import catalog
from tailspan_queries.client import Client
from tailspan_queries.filters import Filters
from tailspan_queries.layers import LayerRow, diagnose, layer_report, part_name
from tailspan_queries.layers_contribution import cautions, contribution_report
from tailspan_queries.layers_drift import Drift, drift_report, parse_baseline
from tailspan_queries.layers_drift import diagnose as diagnose_drift
from tailspan_queries.layers_records import Contribution, Speedup
from tailspan_queries.layers_speedup import parse_speedup
from tailspan_queries.times import Window
from tests.queries import engine_traffic, layer_traffic, traffic
from tests.queries.layer_traffic import DeviceStep, LayeredEngine

Part = tuple[int | None, str]
BY: Mapping[str, Callable[[str], Part]] = {
    "kind": lambda name: (None, name.rpartition("/")[2]),
    "layer": lambda name: (int(name.partition("/")[0]) if "/" in name else None, ""),
    "part": lambda name: (int(name.partition("/")[0]) if "/" in name else None, name.rpartition("/")[2]),
}
QUANTILES = (("p50", 50), ("p99", 99))


def check_same(rows: Sequence[LayerRow | Drift], expected: Sequence[LayerRow | Drift]) -> None:
    """Check that two answers agree; threads add up in any order, so that the last digit of a sum may differ."""
    assert len(rows) == len(expected)
    for row, other in zip(rows, expected, strict=True):
        for name, value in asdict(row).items():
            wanted = asdict(other)[name]
            assert value == (pytest.approx(wanted, rel=1e-9) if isinstance(wanted, float) else wanted), name


def summed(item: DeviceStep, by: str) -> dict[Part, float]:
    """Return the times of a sampled step by line."""
    found: dict[Part, float] = {}
    for name, ns in item.parts.items():
        found[BY[by](name)] = found.get(BY[by](name), 0.0) + ns
    return found


def bucket(requests: int) -> tuple[int, int]:
    """Return least and largest batch size of a bucket."""
    if requests <= 1:
        return 1, 1
    if requests <= 4:
        return 2, 4
    largest = 2 ** math.ceil(math.log2(requests))
    return largest // 2 + 1, largest


def requests(item: DeviceStep) -> int:
    """Return the batch size of a step."""
    return item.step.decode_tokens + (item.step.prefill_tokens > 0)


def check_line(row: LayerRow, by: str, steps: Sequence[DeviceStep]) -> None:
    """Compare one line with the sampled steps of its model and batch size."""
    counts = np.array([item.counts for item in steps])
    times = np.array([summed(item, by)[row.layer, row.kind] for item in steps])
    repeated = np.repeat(times, counts.astype(int))
    tokens = np.array([item.step.prefill_tokens + item.step.decode_tokens for item in steps])
    assert (row.kept_count, row.step_count) == (len(steps), counts.sum())
    for name, quantile in QUANTILES:
        assert getattr(row, f"{name}_ns") == pytest.approx(np.percentile(repeated, quantile))
    assert row.mean_ns == pytest.approx(np.average(times, weights=counts))
    assert row.total_ns == pytest.approx(times @ counts)
    assert row.per_token_ns == pytest.approx(times @ counts / (tokens @ counts))
    whole = np.array([sum(item.parts.values()) for item in steps])
    assert row.share_ratio == pytest.approx(times @ counts / (whole @ counts))
    for phase, found in (("decode", row.decode_share_ratio), ("prefill", row.prefill_share_ratio)):
        of_phase = counts * np.array([item.phase == phase for item in steps])
        expected = times @ of_phase / (whole @ of_phase) if of_phase.any() else None
        assert found == (pytest.approx(expected) if expected is not None else None)


@pytest.mark.parametrize("phase", ["all", "decode", "prefill"])
@pytest.mark.parametrize("by", ["kind", "layer", "part"])
def test_times_are_those_of_numpy(
    client: Client, layered: list[LayeredEngine], layer_window: Window, by: str, phase: str
) -> None:
    """Each line of each model, sampled steps and sampled spans weighted, and the shares of a model sum to 1."""
    report = layer_report(client, layer_window, by=by, phase=phase)
    for item in layered:
        rows = [row for row in report.rows if row.model == item.engine.model]
        steps = [step for step in item.sampled if phase in ("all", step.phase)]
        assert {(row.layer, row.kind) for row in rows} == ({*summed(steps[0], by)} if steps else set())
        for row in rows:
            check_line(row, by, steps)
            assert (row.batch_min, row.batch_max) == (0, 0)
            assert (row.device, row.mode) == (item.device.kind, item.device.mode)
        assert not rows or sum(row.share_ratio for row in rows) == pytest.approx(1)


def test_each_batch_size_by_itself(client: Client, layered: list[LayeredEngine], layer_window: Window) -> None:
    """Buckets hold the steps of their batch sizes, and their shares sum to 1 each."""
    item = layered[0]
    report = layer_report(client, layer_window, Filters(model=item.engine.model), batch=True)
    buckets: dict[tuple[int, int], list[DeviceStep]] = {}
    for step in item.sampled:
        buckets.setdefault(bucket(requests(step)), []).append(step)
    assert len(buckets) > 3
    assert {(row.batch_min, row.batch_max) for row in report.rows} == set(buckets)
    for sizes, steps in buckets.items():
        rows = [row for row in report.rows if (row.batch_min, row.batch_max) == sizes]
        for row in rows:
            check_line(row, "kind", steps)
        assert sum(row.share_ratio for row in rows) == pytest.approx(1)


def test_a_layer_that_deviates_is_named(client: Client, layered: list[LayeredEngine], layer_window: Window) -> None:
    """The deviation is from the median over the layers of the same kind; the planted layer is the only one named."""
    report = layer_report(client, layer_window, by="part")
    for row in report.rows:
        steps = next(item for item in layered if item.engine.model == row.model).sampled
        counts = [int(item.counts) for item in steps]
        if row.layer is None:
            assert row.deviation_ratio is None
            continue
        medians = [
            np.median(np.repeat([item.parts[f"{layer}/{row.kind}"] for item in steps], counts)) for layer in range(6)
        ]
        assert row.deviation_ratio == pytest.approx(medians[row.layer] / np.median(medians) - 1)
    assert [(row.model, row.layer, row.kind) for row in report.slow] == [("smol-6", 2, "attention")]
    assert "2/attention of smol-6 +5" in diagnose(report)


def test_limits_and_filters(client: Client, layer_window: Window) -> None:
    """The largest lines come first; layers are in their order; an unknown model has no lines and no sentence."""
    parts = layer_report(client, layer_window, Filters(model="llama-6"), "part", limit=3)
    everything = layer_report(client, layer_window, Filters(model="llama-6"), "part")
    check_same(parts.rows, everything.rows[:3])
    assert [row.total_ns for row in everything.rows] == sorted((row.total_ns for row in everything.rows), reverse=True)
    layers = layer_report(client, layer_window, Filters(model="llama-6"), "layer").rows
    assert [part_name("layer", row.layer, row.kind) for row in layers] == [*(f"layer {n}" for n in range(6)), "outside"]
    nothing = layer_report(client, layer_window, Filters(model="other"))
    assert (nothing.rows, nothing.slow, diagnose(nothing)) == ((), (), "")


# --- drift ----------------------------------------------------------------------------------------------------------
def like(item: DeviceStep) -> tuple[str, int, int]:
    """Return what steps must share to be compared."""
    tokens = item.step.prefill_tokens
    size = int(np.round(4 * np.log2(max(item.step.decode_tokens, 1))))
    return item.phase, size, int(np.round(2 * np.log2(tokens))) if tokens else -1


def block_medians(
    items: Sequence[DeviceStep], base: Mapping[tuple[str, int, int], float], by: str, line: Part
) -> tuple[int, list[float]]:
    """Return how many steps could be compared, and the logarithm of the median of each block."""
    compared = sorted((item for item in items if like(item) in base), key=lambda item: item.step.begin_ns)
    blocks: dict[int, list[DeviceStep]] = {}
    for rank, item in enumerate(compared):
        blocks.setdefault(rank * 16 // len(compared), []).append(item)
    return len(compared), [
        math.log(
            np.median(
                np.repeat(
                    [summed(item, by)[line] / base[like(item)] for item in block], [int(item.counts) for item in block]
                )
            )
        )
        for block in blocks.values()
    ]


def check_drift(row: Drift, by: str, before: Sequence[DeviceStep], now: Sequence[DeviceStep]) -> None:
    """Compare a line with Welch's test on the blocks' medians."""
    line = row.layer, row.kind
    groups: dict[tuple[str, int, int], list[DeviceStep]] = {}
    for item in before:
        groups.setdefault(like(item), []).append(item)
    base = {
        key: float(np.median(np.repeat([summed(item, by)[line] for item in group], [int(i.counts) for i in group])))
        for key, group in groups.items()
        if len(group) >= 10
    }
    kept, current = block_medians(now, base, by, line)
    kept_before, earlier = block_medians(before, base, by, line)
    assert (row.kept_count, row.baseline_count) == (kept, kept_before)
    assert (row.blocks, row.baseline_blocks) == (len(current), len(earlier))
    assert row.ratio == pytest.approx(math.exp(np.mean(current) - np.mean(earlier)))
    test = stats.ttest_ind(current, earlier, equal_var=False)
    interval = test.confidence_interval(0.95)
    assert row.p_value == pytest.approx(test.pvalue, rel=1e-6, abs=1e-12)
    assert (row.ratio_low, row.ratio_high) == pytest.approx((math.exp(interval.low), math.exp(interval.high)))


@pytest.mark.parametrize("by", ["kind", "layer", "part"])
def test_drift_is_that_of_welchs_test_on_blocks(
    client: Client,
    layered: list[LayeredEngine],
    slowed: list[LayeredEngine],
    layer_window: Window,
    slowed_window: Window,
    by: str,
) -> None:
    """Ratio, interval and p value of each line; the planted part is the only one that drifted, by what was planted."""
    report = drift_report(client, slowed_window, layer_window, Filters(model="llama-6"), by)
    for row in report.rows:
        check_drift(row, by, layered[0].sampled, slowed[0].sampled)
        assert row.lines == len(report.rows)
    drifted = [(row.layer, row.kind) for row in report.rows if report.drifted(row)]
    assert drifted == {"part": [(3, "mlp")], "layer": [(3, "")], "kind": [(None, "mlp")]}[by]
    if by == "part":
        assert report.rows[0].ratio == pytest.approx(1.12, abs=0.03)
        limited = drift_report(client, slowed_window, layer_window, Filters(model="llama-6"), by, limit=2)
        check_same(limited.rows, report.rows[:2])
        assert [limited.drifted(row) for row in limited.rows] == [True, False]


def test_windows_that_do_not_differ_show_no_drift(client: Client, steady: LayeredEngine) -> None:
    """An engine that does not change, cut in two at many places: hardly a report of all its parts shows a drift."""
    begins = [step.step.begin_ns for step in steady.steps]
    reports = [
        drift_report(
            client,
            Window(begins[int(len(begins) * place)], begins[-1] + 1),
            Window(begins[0], begins[int(len(begins) * place)]),
            Filters(model="steady-6"),
            "part",
        )
        for place in (0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7)
    ]
    assert all(len(report.rows) == len(layer_traffic.NOMINAL) for report in reports)
    assert all(row.p_value is not None for report in reports for row in report.rows)
    assert sum(any(report.drifted(row) for row in report.rows) for report in reports) <= 1


def test_few_steps_are_no_drift(client: Client, steady: LayeredEngine) -> None:
    """With fewer than four blocks there is a ratio, but no interval, and the sentence says that these are too few."""
    begins = [item.step.begin_ns for item in steady.sampled]
    middle = len(begins) // 2
    few = Window(begins[middle], begins[middle + 3])
    report = drift_report(client, few, Window(begins[0], begins[middle]), Filters(model="steady-6"))
    assert report.rows
    for row in report.rows:
        assert row.blocks == row.kept_count <= 3
        assert (row.p_value, row.ratio_low, row.ratio_high) == (None, None, None)
        assert not report.drifted(row)
    assert diagnose_drift(report) == "too few sampled steps to tell a change from noise: widen the windows."


def test_a_baseline_is_read_and_checked(client: Client, layer_window: Window) -> None:
    """FROM..TO in the forms of --since; one that overlaps the window is refused."""
    now_ns = layer_window.until_ns
    assert parse_baseline("2h..1h", now_ns) == Window(now_ns - 7200 * 10**9, now_ns - 3600 * 10**9)
    for text, message in (("2h", "not of the form"), ("1h..2h", "ends before it begins"), ("x..1h", "neither")):
        with pytest.raises(UserError, match=message):
            parse_baseline(text, now_ns)
    with pytest.raises(UserError, match="overlaps the window"):
        drift_report(client, layer_window, layer_window)


# --- contribution ---------------------------------------------------------------------------------------------------
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


def ledger(item: LayeredEngine, request: traffic.Request, by: str) -> dict[Line, dict[str, float]]:
    """Walk over the stages of a request and their steps; return ns by line and stage."""
    known, parts = costs(item), shares(item, by)
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


def added(ledgers: Iterable[dict[Line, dict[str, float]]], line: Line, stage: str = "") -> float:
    """Return the time of a line over requests, in one stage or in all."""
    return sum(ns for one in ledgers for name, ns in one.get(line, {}).items() if stage in ("", name))


@pytest.mark.parametrize("by", ["kind", "layer", "part"])
@pytest.mark.parametrize("model", ["", "llama-6", "llama-eager", "smol-6", "qwen-6"])
def test_contributions_are_those_of_a_walk_over_the_steps(
    client: Client, layered: list[LayeredEngine], layer_window: Window, by: str, model: str
) -> None:
    """Every line, by stage and at the tail, is what a walk over each request's steps finds, and they sum to e2e."""
    served = [
        (item, request)
        for item in layered
        if model in ("", item.engine.model)
        for request in engine_traffic.requests_of(item.engine)
    ]
    ledgers = [ledger(item, request, by) for item, request in served]
    e2e = np.array([request.e2e_ns for _, request in served])
    tail = [one for one, ns in zip(ledgers, e2e, strict=True) if ns >= np.percentile(e2e, 99)]
    report = contribution_report(client, layer_window, Filters(model=model), by)
    lines = {line for one in ledgers for line in one if added(ledgers, line)}
    assert {(row.what, row.stage, row.layer, row.kind) for row in report.rows} == lines
    for row in report.rows:
        line = row.what, row.stage, row.layer, row.kind
        assert row.mean_ns == pytest.approx(added(ledgers, line) / len(e2e), abs=1)
        assert row.share_ratio == pytest.approx(added(ledgers, line) / e2e.sum())
        assert row.prefill_mean_ns == pytest.approx(added(ledgers, line, "prefill") / len(e2e), abs=1)
        assert row.decode_mean_ns == pytest.approx(added(ledgers, line, "decode") / len(e2e), abs=1)
        assert row.tail_mean_ns == pytest.approx(added(tail, line) / len(tail), abs=1)
        assert row.tail_share_ratio == pytest.approx(
            added(tail, line) / e2e[e2e >= np.percentile(e2e, 99)].sum(), abs=1e-9
        )
        assert (row.request_count, row.kept_count, row.tail_count) == (len(e2e), len(e2e), len(tail))
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


# --- the document ---------------------------------------------------------------------------------------------------
DOCUMENT = (Path(__file__).parents[2] / "docs" / "LAYERS.md").read_text(encoding="utf-8")


def test_the_documents_examples_are_what_the_commands_print() -> None:
    """Each example in docs/LAYERS.md is the stored output of that command."""
    stored = {file.read_text(encoding="utf-8") for file in (Path(__file__).parent / "snapshots").glob("*.txt")}
    examples = re.findall(r"^```\n\$ tailspan [^\n]+\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert len(examples) == 5
    assert set(examples) <= stored


@pytest.mark.parametrize("sql", re.findall(r"^```sql\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL))
def test_the_documents_recipes_find_rows(client: Client, layer_window: Window, sql: str) -> None:
    """Each recipe in docs/LAYERS.md runs and, over the window of the examples, finds something finite."""
    begin = f"toDateTime64('{layer_window.parameters['since']}', 9, 'UTC')"
    result = client.execute(catalog.Query("recipe", sql.replace("now() - interval 1 hour", begin)), {})
    assert result.rows
    assert all(math.isfinite(value) for row in result.rows for value in row if isinstance(value, float))
