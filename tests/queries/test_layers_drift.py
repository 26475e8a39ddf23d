"""What the report of drifted layers says of made-up engines, against NumPy and SciPy."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from scipy import stats

from tailspan.errors import UserError
from tailspan_queries.client import Client
from tailspan_queries.filters import Filters
from tailspan_queries.layers_drift import Drift, drift_report, parse_baseline
from tailspan_queries.layers_drift import diagnose as diagnose_drift
from tailspan_queries.times import Window
from tests.queries import layer_traffic
from tests.queries.layer_parts import Part, check_same, summed
from tests.queries.layer_traffic import DeviceStep, LayeredEngine


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
