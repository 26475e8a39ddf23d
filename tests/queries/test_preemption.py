"""What the preemption report says of made-up engines, against a computation request by request in NumPy."""

from collections.abc import Sequence

import numpy as np
import pytest

from tailspan import attributes
from tailspan_queries.client import Client
from tailspan_queries.filters import Filters
from tailspan_queries.preemption import Preemption, diagnose, preemption_report
from tailspan_queries.times import Window, iso
from tests.queries import traffic
from tests.queries.engine_traffic import Engine
from tests.queries.test_interference import KEYS

Served = list[tuple[Engine, traffic.Request]]


def evicted_ns(request: traffic.Request) -> int:
    """Return the time that a request was evicted."""
    return request.stage_ns("preempted")


def recompute(request: traffic.Request) -> tuple[int, int]:
    """Return time and tokens of the prefill that was computed again."""
    evicted = decoded = False
    before_ns = after_ns = tokens = sampled = 0
    lost_decode = False
    for stage in request.stages:
        if stage.name == "preempted":
            lost_decode = lost_decode or (decoded and not evicted)
            evicted = True
        elif stage.name == "decode":
            decoded = True
            sampled += int(stage.extra[attributes.STEP_LAST]) - int(stage.extra[attributes.STEP_FIRST]) + 1
        elif stage.name == "prefill" and evicted:
            after_ns += stage.wall_ns
            prompt = int(stage.extra[attributes.GEN_AI_INPUT_TOKENS]) - int(stage.extra[attributes.CACHED_TOKENS])
            tokens += prompt + (sampled + 1 if sampled else 0)
        elif stage.name == "prefill":
            before_ns += stage.wall_ns
    return (after_ns if lost_decode else min(before_ns, after_ns)), tokens


def check(row: Preemption, requests: Sequence[traffic.Request]) -> None:
    """Compare one line with what was computed for its requests."""
    hit = [request for request in requests if evicted_ns(request)]
    others = [request for request in requests if not evicted_ns(request)]
    lost = np.array([evicted_ns(request) + recompute(request)[0] for request in hit])
    assert (row.requests, row.kept_count, row.hit_requests) == (len(requests), len(requests), len(hit))
    assert row.hit_ratio == pytest.approx(len(hit) / len(requests))
    assert row.evictions == sum(stage.name == "preempted" for request in hit for stage in request.stages)
    assert row.evicted_ns == sum(map(evicted_ns, hit))
    assert row.recompute_ns == sum(recompute(request)[0] for request in hit)
    assert row.recompute_tokens == sum(recompute(request)[1] for request in hit)
    assert row.extra_ns == lost.sum()
    groups = {"": requests, "others_": others, "hit_": hit}
    for name, quantile in (("p50", 50), ("p99", 99)):
        for group, members in groups.items():
            found = getattr(row, f"{group}e2e_{name}_ns")
            e2e = [request.e2e_ns for request in members]
            assert found == (pytest.approx(np.percentile(e2e, quantile)) if e2e else None)
        found = getattr(row, f"extra_{name}_ns")
        assert found == (pytest.approx(np.percentile(lost, quantile)) if hit else None)
    without = [request.e2e_ns - evicted_ns(request) - recompute(request)[0] for request in requests]
    assert row.e2e_without_extra_p99_ns == pytest.approx(np.percentile(without, 99))
    if hit:
        assert row.extra_ratio == pytest.approx(lost.sum() / sum(request.e2e_ns for request in hit))
        assert row.extra_max_ns == lost.max()
        assert row.worst_trace_id == hit[int(lost.argmax())].trace_id.hex()
    else:
        assert (row.extra_ratio, row.extra_max_ns, row.worst_trace_id) == (0, None, "")


@pytest.mark.parametrize("by", ["engine", "model", "instance", "all"])
def test_losses_are_those_of_a_walk_over_the_stages(
    client: Client, served: Served, engine_window: Window, by: str
) -> None:
    """Each line sums up its requests: hit, lost, and the tail with and without the evicted ones."""
    key = KEYS[by]
    rows = preemption_report(client, engine_window, by=by).rows
    assert {row.key for row in rows} == {key(engine) for engine, _ in served}
    for row in rows:
        check(row, [request for engine, request in served if key(engine) == row.key])
    assert any(row.evictions > 10 for row in rows)


def test_the_made_up_engines_evict_in_prefill_too(served: Served) -> None:
    """The traffic holds requests that were evicted before their first token, and some that were evicted twice."""
    names = [[stage.name for stage in request.stages] for _, request in served]
    assert any("preempted" in stages and "decode" not in stages[: stages.index("preempted")] for stages in names)
    assert any(stages.count("preempted") > 1 for stages in names)


def test_only_evicted_requests_are_listed(client: Client, served: Served, engine_window: Window) -> None:
    """By request, those who lost most come first, and those who lost nothing are left out."""
    rows = preemption_report(client, engine_window, by="request", limit=10_000).rows
    hit = {request.trace_id.hex(): request for _, request in served if evicted_ns(request)}
    assert {row.key for row in rows} == set(hit)
    for row in rows:
        check(row, [hit[row.key]])
    assert [row.extra_ns for row in rows] == sorted((row.extra_ns for row in rows), reverse=True)


def test_minutes_hold_the_requests_that_began_in_them(client: Client, served: Served, engine_window: Window) -> None:
    """By minute, lines are in the order of time and minutes without an eviction are there too."""
    rows = preemption_report(client, engine_window, Filters(model="qwen"), by="minute").rows
    for row in rows:
        requests = [
            request
            for _, request in served
            if request.model == "qwen" and iso(request.start_ns)[:16].replace("T", " ") == row.key
        ]
        check(row, requests)
    assert rows


def test_one_request_alone(client: Client, served: Served) -> None:
    """A window of one evicted request finds its later stages, which began after the window."""
    request = next(request for _, request in served if evicted_ns(request))
    window = Window(request.start_ns, request.start_ns + 1)
    row = next(
        row
        for row in preemption_report(client, window, Filters(instance=request.instance), by="request").rows
        if row.key == request.trace_id.hex()
    )
    check(row, [request])


def test_no_eviction_and_no_request_are_told_apart(client: Client, pair_window: Window) -> None:
    """Requests without an eviction give a line with zeros, an empty window none."""
    report = preemption_report(client, pair_window, by="all")
    (row,) = report.rows
    assert (row.requests, row.hit_requests, row.extra_ns, row.worst_trace_id) == (2, 0, 0, "")
    assert row.others_e2e_p50_ns == row.e2e_p50_ns
    assert diagnose(report) == "no request was evicted."
    empty = Window(traffic.BEGIN_NS - 600_000_000_000, traffic.BEGIN_NS - 300_000_000_000)
    for by in ("engine", "minute", "request", "all"):
        assert preemption_report(client, empty, by=by).rows == ()
