"""The engine steps of one trace: summed up by stage, and the slowest with what explains them, against NumPy."""

import numpy as np
import pytest

from tailspan import attributes
from tailspan_queries.client import Client
from tailspan_queries.slow_steps import REASONS, SlowStep
from tailspan_queries.times import sql_time
from tailspan_queries.traces import trace_report
from tests.queries import traffic
from tests.queries.engine_traffic import Engine, Step
from tests.queries.test_interference import compared_with, costs, medians, size_class

Served = list[tuple[Engine, traffic.Request]]


def stage_steps(engine: Engine, stage: traffic.Stage) -> list[Step]:
    """Return the stored steps from the first to the last of a stage."""
    if attributes.STEP_FIRST not in stage.extra:
        return []
    first, last = int(stage.extra[attributes.STEP_FIRST]), int(stage.extra[attributes.STEP_LAST])
    return [step for step in engine.stored if first <= step.number <= last]


def own_tokens(stage: traffic.Stage) -> int:
    """Return the prompt tokens that a prefill had to compute."""
    if stage.name != "prefill":
        return 0
    return int(stage.extra[attributes.GEN_AI_INPUT_TOKENS]) - int(stage.extra[attributes.CACHED_TOKENS])


def some(served: Served) -> Served:
    """Return evicted requests and others of every engine."""
    found: Served = []
    for engine in {engine.engine_id: engine for engine, _ in served}.values():
        own = [(engine, request) for other, request in served if other is engine]
        found += [item for item in own if item[1].stage_ns("preempted")][:2] + own[:2]
    return found


def test_each_stage_sums_up_its_steps(client: Client, served: Served) -> None:
    """Batch, prefill of others, waiting, evictions and idle time are those of the steps of the stage."""
    for engine, request in some(served):
        report = trace_report(client, request.trace_id.hex())
        in_engine = [(stage, steps) for stage in request.stages if (steps := stage_steps(engine, stage))]
        spans = [span for span in report.requests[0].stages if span.span_id in report.steps]
        for (stage, steps), span in zip(in_engine, spans, strict=True):
            found = report.steps[span.span_id]
            assert span.stage == stage.name
            weights = [step.weight for step in steps]
            prefill = sum(step.prefill_tokens * step.weight for step in steps)
            sizes = [step.decode_tokens + (step.prefill_tokens > 0) for step in steps]
            assert found.steps == sum(weights)
            assert found.requests_mean == pytest.approx(np.average(sizes, weights=weights))
            assert found.requests_max == max(sizes)
            assert found.mixed_steps == sum(step.weight for step in steps if step.prefill_tokens)
            assert (found.prefill_tokens, found.others_tokens) == (prefill, max(prefill - own_tokens(stage), 0))
            assert found.waiting_mean == pytest.approx(np.average([step.waiting for step in steps], weights=weights))
            assert found.waiting_max == max(step.waiting for step in steps)
            assert found.preempted == sum(step.preempted * step.weight for step in steps)
            assert found.kv_usage_max_ratio == 0.5
            assert found.idle_ns == sum(step.idle_ns * step.weight for step in steps)


def explain(engine: Engine, request: traffic.Request) -> list[tuple[int, str, str, float]]:
    """Return step, stage, reason and its nanoseconds of all steps of a request, the slowest first."""
    cost = costs(engine)
    pure = medians(engine, cost)
    usual_idle = np.median([step.idle_ns for step in engine.stored for _ in range(round(step.weight))])
    found = []
    for stage in request.stages:
        steps = stage_steps(engine, stage)
        usual_size = np.median([size_class(step) for step in steps for _ in range(round(step.weight))]) if steps else 0
        usual_step_ns = pure[max((size for size in pure if size <= usual_size), default=min(pure))]
        share = min(own_tokens(stage) / max(sum(step.prefill_tokens for step in steps), 1), 1)
        for step in steps:
            base = compared_with(step, pure)
            beyond, idle = cost[step.number] - base, step.idle_ns - usual_idle
            mixed = step.prefill_tokens > 0
            reasons = {
                "usual": 0.05 * (cost[step.number] + step.idle_ns),
                "prefill": beyond * mixed * (1 - share),
                "own": beyond * mixed * share,
                "batch": base - usual_step_ns if step.decode_tokens else 0,
                "idle": idle if not step.preempted else 0,
                "preemption": idle + beyond * (not mixed) if step.preempted else 0,
                "step": beyond if not mixed and not step.preempted else 0,
            }
            why = max(reasons, key=lambda name: reasons[name])
            took = cost[step.number] + step.idle_ns
            found.append((took, step.number, stage.name, why, 0.0 if why == "usual" else reasons[why]))
    return [item[1:] for item in sorted(found, key=lambda item: (-item[0], item[1]))]


def test_the_slowest_steps_are_explained_by_the_largest_factor(client: Client, served: Served) -> None:
    """The order, the reason and its size of every step of a request, of plain, overlapping and sampled steps."""
    reasons: set[str] = set()
    for engine, request in some(served):
        rows = client.run(
            "trace_slow_steps",
            {
                "trace_id": request.trace_id.hex(),
                "since": sql_time(request.start_ns),
                "until": sql_time(request.start_ns + request.e2e_ns),
                "limit": 10_000,
            },
        ).records()
        expected = explain(engine, request)
        assert [(row["step"], row["stage"], row["why"]) for row in rows] == [item[:3] for item in expected]
        assert [row["why_ns"] for row in rows] == pytest.approx([item[3] for item in expected], abs=1)
        reasons |= {row["why"] for row in rows}
    assert {"prefill", "own", "idle", "usual", "step"} <= reasons <= set(REASONS)


def test_a_trace_lists_its_five_slowest_steps(client: Client, served: Served) -> None:
    """The report of a trace holds them with all columns; a trace outside of engines has none."""
    engine, request = some(served)[0]
    report = trace_report(client, request.trace_id.hex())
    assert [step.step for step in report.slow_steps] == [item[0] for item in explain(engine, request)[:5]]
    assert all(isinstance(step, SlowStep) and step.median_ns for step in report.slow_steps)
    assert trace_report(client, f"{5:032x}").slow_steps == ()
