"""What the report about devices says of made-up engines, against NumPy."""

from dataclasses import replace

import numpy as np
import pytest

from tailspan_queries.client import Client
from tailspan_queries.engines import engine_report
from tailspan_queries.filters import Filters
from tailspan_queries.gpu import GpuRow, cautions, device_name, diagnose, gpu_report
from tailspan_queries.times import Window
from tests.queries.layer_traffic import LayeredEngine

LAUNCH_LIMIT = 0.8


def check(row: GpuRow, item: LayeredEngine) -> None:
    """Compare one line with the steps of its engine."""
    steps = item.steps
    weights = np.array([step.step.weight for step in steps])
    busy, idle, launch = (
        np.array([getattr(step, f"{name}_ns") for step in steps], float) for name in ("busy", "idle", "launch")
    )
    timed, known, launched = busy >= 0, idle >= 0, launch >= 0
    prefills = np.array([step.phase == "prefill" for step in steps])
    assert (row.device, row.model) == (item.device.kind, item.engine.model)
    assert (row.step_count, row.kept_count) == (weights.sum(), len(steps))
    assert row.untimed_count == weights[~timed].sum()
    assert row.idle_unknown_count == weights[timed & ~known].sum()
    busy_ns, idle_ns = (busy * weights)[timed].sum(), (idle * weights)[known].sum()
    assert (row.busy_ns, row.idle_ns) == pytest.approx((busy_ns, idle_ns))
    assert (row.busy_ratio, row.idle_ratio) == pytest.approx(
        (busy_ns / (busy_ns + idle_ns), idle_ns / (busy_ns + idle_ns))
    )
    if item.device.launch_share is None:
        assert (row.launched_ratio, row.launch_bound_ratio, row.launch_p50_ns) == (None, None, None)
    else:
        bound = (busy * weights)[launched & (launch >= LAUNCH_LIMIT * busy)].sum() / (busy_ns + idle_ns)
        assert row.launched_ratio == pytest.approx(bound)
        assert row.launch_bound_ratio == pytest.approx(bound + idle_ns / (busy_ns + idle_ns))
        repeated = np.repeat(launch[launched], weights[launched].astype(int))
        assert (row.launch_p50_ns, row.launch_p99_ns) == pytest.approx(tuple(np.percentile(repeated, (50, 99))))
    for name, values, there in (("busy", busy, timed), ("idle", idle, known)):
        repeated = np.repeat(values[there], weights[there].astype(int))
        assert getattr(row, f"{name}_p50_ns") == pytest.approx(np.percentile(repeated, 50))
        assert getattr(row, f"{name}_p99_ns") == pytest.approx(np.percentile(repeated, 99))
    assert row.prefill_busy_ns == pytest.approx((busy * weights)[timed & prefills].sum())
    assert row.decode_busy_ns == pytest.approx((busy * weights)[timed & ~prefills].sum())
    assert row.uncertainty_ns == max(2000 + step.step.number % 7 for step in steps if step.busy_ns >= 0)


def test_devices_are_those_of_a_walk_over_the_steps(
    client: Client, layered: list[LayeredEngine], layer_window: Window
) -> None:
    """Each engine's busy, idle and launch time, of sampled spans and of steps without device time too."""
    report = gpu_report(client, layer_window)
    by_id = {item.engine.engine_id: item for item in layered}
    assert {row.engine_id for row in report.rows} == set(by_id)
    for row in report.rows:
        check(row, by_id[row.engine_id])
    assert any(row.untimed_count for row in report.rows)
    assert any(row.launched_ratio for row in report.rows)


def test_engines_without_device_times_are_listed(client: Client, pair_window: Window) -> None:
    """Steps of which no device time is known count, all else is unknown, and the sentence says why that may be."""
    report = gpu_report(client, pair_window)
    assert {(row.engine_id, row.device) for row in report.rows} == {("engine-1", ""), ("engine-2", "")}
    for row in report.rows:
        assert row.untimed_count == row.step_count
        assert (row.busy_ratio, row.launched_ratio, row.busy_p50_ns, row.busy_ns) == (None, None, None, 0)
        assert row.uncertainty_ns == -1
    assert diagnose(report).startswith("no step has a device time: timing is switched off")
    assert cautions(report) == []


def test_the_engine_report_tells_launches_too(
    client: Client, layered: list[LayeredEngine], layer_window: Window
) -> None:
    """`tailspan engine` takes device time and launches from the same steps; a CPU has none."""
    rows = {row.engine_id: row for row in engine_report(client, layer_window).rows}
    for item in layered:
        row = rows[item.engine.engine_id]
        timed = [step for step in item.steps if step.busy_ns >= 0]
        if item.device.kind == "cpu":
            assert (row.device_ratio, row.device_launched_ratio) == (None, None)
            continue
        busy_ns = sum(step.busy_ns for step in timed)
        launched_ns = sum(step.busy_ns for step in timed if step.launch_ns >= LAUNCH_LIMIT * step.busy_ns)
        assert row.device_launched_ratio == pytest.approx(launched_ns / busy_ns)
        assert row.device_ratio == pytest.approx(busy_ns / sum(step.step.wall_ns for step in timed), rel=1e-6)


def test_the_host_clock_is_told_apart() -> None:
    """What a CPU engine shows is named as time of the host's clock."""
    assert [device_name(name) for name in ("cpu", "cuda", "rocm", "")] == ["cpu (host clock)", "cuda", "rocm", ""]


def test_the_sentence_names_what_the_device_waited_for(client: Client, layer_window: Window) -> None:
    """Launches, gaps between steps, and neither are three sentences; a CPU engine has its own."""
    report = gpu_report(client, layer_window, Filters(model="llama-6"))
    (row,) = report.rows

    def sentence(idle: float, launched: float | None, device: str = "cuda") -> str:
        changed = replace(
            row, device=device, busy_ns=1 - idle, idle_ns=idle, busy_ratio=1 - idle, idle_ratio=idle,
            launched_ratio=launched,
        )  # fmt: skip
        return diagnose(replace(report, rows=(changed,)))

    assert "gpu-a is launch-bound: for 60 % of the time" in sentence(0.1, 0.6)
    assert "the device of gpu-a waited 30.0 % of the time with requests for its host" in sentence(0.3, 0.1)
    assert "the device of gpu-a is kept busy, 98 % of" in sentence(0.02, 0.0)
    assert "kept busy" in sentence(0.02, None)
    assert "gpu-a has no GPU: by its host's clock the model ran for 90 %" in sentence(0.1, None, "cpu")


def test_missing_times_are_a_caution(client: Client, layer_window: Window) -> None:
    """More than a twentieth of the steps without device or idle time is said, less is not."""
    report = gpu_report(client, layer_window, Filters(model="llama-6"))
    (row,) = report.rows
    clean = replace(row, untimed_count=0, idle_unknown_count=0)
    assert cautions(replace(report, rows=(clean,))) == []
    lost = replace(clean, untimed_count=row.step_count // 10)
    assert "10 % of the steps of gpu-a have no device time" in cautions(replace(report, rows=(lost,)))[0]
    unknown = replace(clean, idle_unknown_count=row.step_count // 4)
    assert "before 25 % of the timed steps of gpu-a" in cautions(replace(report, rows=(unknown,)))[0]
