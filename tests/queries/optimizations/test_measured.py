"""What the ledger measures of two windows, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tailspan_queries import LatencyOptimizer, optimizations_store
from tailspan_queries.client import Client
from tailspan_queries.filters import Filters
from tailspan_queries.layers_contribution import contribution_report
from tailspan_queries.optimizations import ledger_report
from tailspan_queries.optimizations_measure import sample
from tailspan_queries.optimizations_records import Optimization
from tailspan_queries.times import Window
from tests.queries import ledger_traffic, traffic
from tests.queries.ledger_traffic import MS, mean_ns
from tests.queries.optimizations.ledger import (
    EMPTY,
    WINDOWS,
    Tuned,
    add,
    kept_weights,
)
from tests.queries.sample_parts import PARTS, part_of
from tests.support.collector import RunningCollector


def test_the_tail_and_every_stage_are_those_of_numpy(
    empty_ledger: RunningCollector, reader: Client, tuned: Tuned
) -> None:
    """Means of the slowest 1 % before and after, the part of each entry, and how each stage changed."""
    add(empty_ledger, reader, "queue", "priority scheduling", 0, 1)
    (account,) = ledger_report(reader, optimizations_store.read(reader)).accounts
    tails = [ledger_traffic.tail_of(tuned[name], kept_weights(empty_ledger, tuned[name])) for name in ("base", "queue")]
    assert account.tail_before_ns == pytest.approx(mean_ns(tails[0], "request"))
    assert account.tail_after_ns == pytest.approx(mean_ns(tails[1], "request"))
    measured = account.effects[0].measured
    assert measured is not None
    assert measured.tail_gain_ns == pytest.approx(mean_ns(tails[0], "queue") - mean_ns(tails[1], "queue"))
    stages = {row.stage: row for row in account.stages}
    assert list(stages) == ["tls", "tokenize", "queue", "prefill", "decode", "unattributed"]
    for stage, row in stages.items():
        assert row.before_ns == pytest.approx(mean_ns(tuned["base"], stage))
        assert row.after_ns == pytest.approx(mean_ns(tuned["queue"], stage))
    assert sum(row.change_ns or 0 for row in account.stages) == pytest.approx(account.change_ns)
    assert stages["queue"].listed_ns[0] == pytest.approx(stages["queue"].change_ns)
    assert stages["decode"].listed_ns == (0, 0)


def test_a_window_without_requests_says_so(empty_ledger: RunningCollector, reader: Client) -> None:
    """An entry about an empty window stays in the report, with the reason instead of numbers."""
    item = Optimization("ab" * 16, "too early", "queue", before=EMPTY, after=WINDOWS[0])
    report = ledger_report(reader, [item])
    (effect,) = report.accounts[0].effects
    assert (effect.origin, effect.why) == ("nothing", "no requests in the window before")
    assert report.accounts[0].total_origin == "nothing"
    assert "no total known" in str(report)
    assert "nan" not in str(report).lower()
    unknown = Optimization("cd" * 16, "nowhere", "", kind="attention", before=WINDOWS[0], after=WINDOWS[1])
    assert ledger_report(reader, [unknown]).accounts[0].effects[0].why == "no step of both windows was timed by part"
    absent = Optimization("ef" * 16, "none", "respond", before=WINDOWS[0], after=WINDOWS[1])
    (effect,) = ledger_report(reader, [absent]).accounts[0].effects
    assert (effect.improvement_ratio, effect.why) == (None, "no request of either window has this stage")


def test_filters_choose_requests(reader: Client, tuned: Tuned) -> None:
    """An entry about one model is measured over the requests of that model, and the report warns of other totals."""
    filters = Filters(model="small")
    item = Optimization("ab" * 16, "a", "queue", before=WINDOWS[0], after=WINDOWS[1], filters=filters)
    (account,) = ledger_report(reader, [item]).accounts
    small = [request for request in tuned["base"] if request.model == "small"]
    assert account.effects[0].before_ns == pytest.approx(mean_ns(small, "queue"))
    assert any("measured over other requests than the total: a" in line for line in account.cautions)
    (account,) = ledger_report(reader, [item], filters=filters).accounts
    assert account.total_before_ns == pytest.approx(mean_ns(small, "request"))


def test_the_python_interface_measures_windows(reader: Client, tuned: Tuned) -> None:
    """`LatencyOptimizer` fills before and after by itself, and takes totals as windows too."""
    optimizer = LatencyOptimizer(reader)
    optimizer.record_optimization("queue", before=WINDOWS[0], after=WINDOWS[1], cost="more complex")
    optimizer.record_optimization("decode", 35, 22, per="token")
    (account,) = optimizer.generate_report(total_before=WINDOWS[0], total_after=WINDOWS[2]).accounts
    assert account.total_after_ns == pytest.approx(mean_ns(tuned["both"], "request"))
    queue = next(effect for effect in account.effects if effect.origin == "measured")
    assert queue.gain_ns[0] == pytest.approx(mean_ns(tuned["base"], "queue") - mean_ns(tuned["queue"], "queue"))
    claim = next(effect for effect in account.effects if effect.origin == "claim")
    assert claim.gain_ns[0] == 0
    rest = mean_ns(tuned["base"], "request") - mean_ns(tuned["base"], "queue")
    rest_after = mean_ns(tuned["both"], "request") - mean_ns(tuned["queue"], "queue")
    fitting = min(rest / (35 * MS), rest_after / (22 * MS))
    assert account.tokens == pytest.approx((0, fitting))
    assert claim.gain_ns[1] == pytest.approx(13 * MS * fitting)


def test_a_part_of_the_model_is_measured_as_a_share_of_requests(
    client: Client, layer_window: Window, layered_requests: list[traffic.Request]
) -> None:
    """An entry about a kind of layer takes its mean a request, as `tailspan layers --e2e` has it, and no interval."""
    middle_ns = sorted(request.start_ns for request in layered_requests)[len(layered_requests) // 2]
    windows = Window(layer_window.since_ns, middle_ns), Window(middle_ns, layer_window.until_ns)
    item = Optimization("ab" * 16, "flash", "", kind="attention", before=windows[0], after=windows[1])
    (effect,) = ledger_report(client, [item]).accounts[0].effects
    rows = [
        next(row for row in contribution_report(client, window, by="kind").parts if row.kind == "attention")
        for window in windows
    ]
    assert rows[0].mean_ns != rows[1].mean_ns
    assert (effect.before_ns, effect.after_ns) == pytest.approx((rows[0].mean_ns, rows[1].mean_ns))
    assert effect.measured is not None
    assert effect.measured.interval_ns is None
    assert effect.measured.tail_gain_ns == pytest.approx(rows[0].tail_mean_ns - rows[1].tail_mean_ns)


def test_the_rollup_says_the_same(reader: Client, tuned: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit sums come from the rollup; they differ only by what was under way at the ends of the window."""
    exact = sample(reader, WINDOWS[0], Filters())
    monkeypatch.setattr("tailspan_queries.stages.EXACT_LIMIT", 10)
    rolled = sample(reader, WINDOWS[0], Filters())
    assert len(rolled.requests) == 3 < len(exact.requests)
    assert rolled.kept == exact.kept == len(tuned["base"])
    assert rolled.requests.sum() == exact.requests.sum() == sum(item.weight for item in tuned["base"])
    assert rolled.mean_ns("request") == pytest.approx(exact.mean_ns("request"), rel=1e-9)
    for stage in ("queue", "decode", "unattributed"):
        assert rolled.mean_ns(stage) == pytest.approx(exact.mean_ns(stage), rel=0.005)


def test_the_tail_of_a_long_window_is_that_of_a_sample(
    empty_ledger: RunningCollector, reader: Client, tuned: Tuned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the rollup is read, means of the slowest are NumPy's over the traces of the sample."""
    count = len(tuned["base"])
    monkeypatch.setattr("tailspan_queries.stages.EXACT_LIMIT", 10)
    monkeypatch.setattr("tailspan_queries.optimizations_measure.READ_LIMIT", count // 2)
    found = sample(reader, WINDOWS[0], Filters())
    read = [item for item in tuned["base"] if part_of(item.trace_id) < PARTS * (count // 2) // count]
    tail = ledger_traffic.tail_of(read, kept_weights(empty_ledger, read))
    assert 0.4 * count < len(read) < 0.6 * count
    for stage in ("request", "queue", "decode"):
        assert found.tail_ns[stage] == pytest.approx(mean_ns(tail, stage))


def test_blocks_hold_the_requests_that_began_in_them(reader: Client, tuned: Tuned) -> None:
    """Three minutes are cut into sixty blocks of three seconds."""
    found = sample(reader, WINDOWS[0], Filters())
    numbers = np.array([(item.start_ns - WINDOWS[0].since_ns) // (3 * 10**9) for item in tuned["base"]])
    weights = np.array([item.weight for item in tuned["base"]])
    waits = np.array([item.stage_ns("queue") for item in tuned["base"]])
    present = np.unique(numbers)
    assert found.requests == pytest.approx([weights[numbers == block].sum() for block in present])
    assert found.sums_ns["queue"] == pytest.approx([(weights * waits)[numbers == block].sum() for block in present])
