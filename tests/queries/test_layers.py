"""What the report of layers says of made-up engines, against NumPy; the examples in its document."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tailspan_queries import catalog
from tailspan_queries.client import Client
from tailspan_queries.filters import Filters
from tailspan_queries.layers import LayerRow, diagnose, layer_report, part_name
from tailspan_queries.times import Window
from tests.queries.layer_parts import check_same, summed
from tests.queries.layer_traffic import DeviceStep, LayeredEngine

QUANTILES = (("p50", 50), ("p99", 99))


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
