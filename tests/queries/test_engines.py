"""What the engine report says of made-up engines, against a computation step by step in NumPy."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tailspan_queries.client import Client
from tailspan_queries.engines import EngineRow, Gap, diagnose, engine_report, followed_by
from tailspan_queries.filters import Filters
from tailspan_queries.times import Window, datetime_ns
from tests.queries import traffic
from tests.queries.engine_traffic import Engine, Step

THRESHOLD_NS = 5_000_000


def split_times(engine: Engine) -> dict[int, tuple[int, int, int]]:
    """Return busy, idle and empty time of each stored step."""
    found: dict[int, tuple[int, int, int]] = {}
    before: Step | None = None
    for step in engine.stored:
        previous_ns = before.end_ns if before else step.begin_ns
        busy = max(step.end_ns - max(step.begin_ns, previous_ns), 0)
        follows = before is not None and before.number + 1 == step.number
        empty = max(step.begin_ns - previous_ns - step.idle_ns, 0) if follows else 0
        found[step.number] = busy, step.idle_ns, empty
        before = step
    return found


def check(row: EngineRow, engine: Engine, steps: Sequence[Step]) -> None:
    """Compare one line with what was computed for its steps."""
    times = np.array([split_times(engine)[step.number] for step in steps])
    weights = np.array([step.weight for step in steps])
    busy, idle, empty = weights @ times
    assert (row.step_count, row.kept_count, row.model) == (weights.sum(), len(steps), engine.model)
    assert (row.busy_ns, row.idle_ns, row.empty_ns) == pytest.approx((busy, idle, empty))
    assert row.busy_ratio == pytest.approx(busy / (busy + idle + empty))
    assert row.idle_ratio == pytest.approx(idle / (busy + idle + empty))
    gaps = np.repeat(times[:, 1], weights.astype(int))
    walls = np.repeat([step.wall_ns for step in steps], weights.astype(int))
    for name, quantile in (("p50", 50), ("p99", 99)):
        assert getattr(row, f"idle_{name}_ns") == pytest.approx(np.percentile(gaps, quantile))
        assert getattr(row, f"wall_{name}_ns") == pytest.approx(np.percentile(walls, quantile))
    assert row.idle_max_ns == gaps.max()
    assert row.long_gaps == (gaps >= THRESHOLD_NS).sum()
    assert row.long_gaps_ns == pytest.approx(gaps[gaps >= THRESHOLD_NS].sum())
    assert row.waiting_max == max(step.waiting for step in steps)
    assert row.preempted == sum(step.preempted * step.weight for step in steps)
    if engine.gpu_share is None:
        assert (row.device_ratio, row.device_idle_ratio) == (None, None)
    else:
        assert row.device_ratio == pytest.approx(engine.gpu_share, rel=1e-6)
        assert row.device_idle_ratio == pytest.approx(1 - engine.gpu_share * busy / (busy + idle), rel=1e-6)


def test_engines_split_their_time(client: Client, engines: list[Engine], engine_window: Window) -> None:
    """Busy, idle and empty time of each engine, its gaps, its device; the most idle engine comes first."""
    report = engine_report(client, engine_window, threshold_ns=THRESHOLD_NS)
    by_id = {engine.engine_id: engine for engine in engines}
    assert {row.engine_id for row in report.rows} == set(by_id)
    for row in report.rows:
        check(row, by_id[row.engine_id], by_id[row.engine_id].stored)
        assert row.minute is None
    assert [row.idle_ns for row in report.rows] == sorted((row.idle_ns for row in report.rows), reverse=True)


def test_time_of_overlapping_steps_counts_once(client: Client, engines: list[Engine], engine_window: Window) -> None:
    """The three times of an engine with async scheduling add up to the time from its first step to its last."""
    steps = next(engine for engine in engines if engine.overlap_ns).stored
    (row,) = engine_report(client, engine_window, Filters(instance="engine-c.host")).rows
    assert sum(step.wall_ns for step in steps) > row.busy_ns
    assert row.busy_ns + row.idle_ns + row.empty_ns == steps[-1].end_ns - steps[0].begin_ns


@pytest.mark.parametrize("instance", ["engine-a.host", "engine-d.host"])
def test_minutes_hold_the_steps_that_began_in_them(
    client: Client, engines: list[Engine], engine_window: Window, instance: str
) -> None:
    """By minute, a window that begins between two steps still knows the step before its first."""
    engine = next(engine for engine in engines if f"{engine.engine_id}.host" == instance)
    cut = engine.stored[len(engine.stored) // 3].begin_ns
    window = Window(cut, engine_window.until_ns)
    rows = engine_report(client, window, Filters(instance=instance), "minute", THRESHOLD_NS).rows
    for row in rows:
        assert row.minute is not None
        begin_ns = datetime_ns(row.minute)
        steps = [step for step in engine.stored if max(begin_ns, cut) <= step.begin_ns < begin_ns + traffic.MINUTE_NS]
        check(row, engine, steps)
    assert len(rows) == 2


def test_the_longest_gaps_with_what_followed(client: Client, engines: list[Engine], engine_window: Window) -> None:
    """Gaps from the threshold on, the longest first, each with the step after it."""
    report = engine_report(client, engine_window, threshold_ns=THRESHOLD_NS, gaps=20)
    steps = [step for engine in engines for step in engine.stored if step.idle_ns >= THRESHOLD_NS]
    expected = sorted(steps, key=lambda step: -step.idle_ns)[:20]
    for gap, step in zip(report.gaps, expected, strict=True):
        assert (gap.engine_id, gap.step, gap.idle_ns) == (step.engine.engine_id, step.number, step.idle_ns)
        assert datetime_ns(gap.start) // 1000 == (step.begin_ns - step.idle_ns) // 1000
        assert (gap.prefill_tokens, gap.decode_tokens) == (step.prefill_tokens, step.decode_tokens)
        assert (gap.joined, gap.preempted, gap.waiting) == (step.joined, step.preempted, step.waiting)
    everything = engine_report(client, engine_window, threshold_ns=THRESHOLD_NS, gaps=10_000)
    assert len(everything.gaps) == len(steps)
    assert engine_report(client, engine_window, threshold_ns=10**12).gaps == ()


def test_what_followed_is_told_in_words(client: Client, engine_window: Window) -> None:
    """Evictions, requests that joined, tokens and the queue, in this order, and only what there was."""
    gap = engine_report(client, engine_window, threshold_ns=THRESHOLD_NS, gaps=1).gaps[0]
    full = replace(gap, preempted=1, joined=2, prefill_tokens=1234, decode_tokens=5, waiting=3)
    assert followed_by(full) == "1 evicted · 2 joined · prefill 1,234 tok · decode 5 · 3 waiting"
    nothing = Gap(**{**{name: getattr(gap, name) for name in Gap.__slots__}, **dict.fromkeys(QUIET, 0)})
    assert followed_by(nothing) == "no tokens"


QUIET = ("preempted", "joined", "prefill_tokens", "decode_tokens", "waiting")


def test_the_sentence_names_what_bounds_the_engine(client: Client, engine_window: Window) -> None:
    """Idle host, idle device and neither are three different sentences; without a device that is said."""
    report = engine_report(client, engine_window)
    row = report.rows[0]

    def sentence(
        idle_ns: float, device_ratio: float | None, device_idle_ratio: float | None, launched: float | None = None
    ) -> str:
        changed = replace(
            row,
            busy_ns=1e9,
            idle_ns=idle_ns,
            device_ratio=device_ratio,
            device_idle_ratio=device_idle_ratio,
            device_launched_ratio=launched,
        )
        return diagnose(replace(report, rows=(changed,)))

    assert "idled 50.0 % of the time with requests: scheduler-bound" in sentence(1e9, None, None)
    assert sentence(1e7, None, None).endswith(
        "the host keeps up between steps. These are times of the host; no device was measured."
    )
    assert "launch-bound" in sentence(1e7, 0.5, 0.55)
    assert sentence(1e7, 0.95, 0.06).endswith("The device computed for 95 % of the steps, so launches keep it busy.")
    assert "for 95 % of the steps, 70 % of that at the pace of its launches: launch-bound" in sentence(
        1e7, 0.95, 0.06, 0.7
    )
    assert sentence(1e7, 0.95, 0.06, 0.3).endswith("so launches keep it busy.")
    assert diagnose(replace(report, rows=())) == ""


def test_one_step_and_no_step(client: Client, engines: list[Engine], engine_window: Window) -> None:
    """A window of a single step gives one line, an empty one none, and neither fails."""
    step = engines[4].stored[-1]
    window = Window(step.begin_ns, step.begin_ns + 1)
    (row,) = engine_report(client, window, Filters(instance="engine-e.host"), threshold_ns=THRESHOLD_NS).rows
    check(row, engines[4], [step])
    report = engine_report(client, Window(engine_window.until_ns - 1, engine_window.until_ns))
    assert (report.rows, report.gaps) == ((), ())
