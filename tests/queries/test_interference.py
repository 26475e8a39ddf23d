"""What the interference report says of made-up engines, against a computation step by step in NumPy."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tailspan import attributes
from tailspan_queries.client import Client
from tailspan_queries.filters import Filters
from tailspan_queries.interference import (
    Interference,
    InterferenceReport,
    cautions,
    diagnose,
    interference_report,
    most_slowed,
)
from tailspan_queries.times import Window, iso
from tests.queries import traffic
from tests.queries.engine_traffic import Engine, Step

Served = list[tuple[Engine, traffic.Request]]
KEYS: dict[str, Callable[[Engine], str]] = {
    "engine": lambda engine: engine.engine_id,
    "model": lambda engine: engine.model,
    "instance": lambda engine: f"{engine.engine_id}.host",
    "all": lambda _: "all",
}
MINUTE_NS = traffic.MINUTE_NS


@dataclass(frozen=True, slots=True)
class Expected:
    """One request, computed step by step."""

    engine: Engine
    request: traffic.Request
    decode_start_ns: int
    decode_ns: int
    tokens: int
    mixed_ns: float
    prefill_tokens: float
    extra_ns: float


def costs(engine: Engine) -> dict[int, int]:
    """Return what each stored step cost: from the later of its begin and the end of the one before it."""
    found, previous_ns = {}, 0
    for step in engine.stored:
        found[step.number] = max(step.end_ns - max(step.begin_ns, previous_ns), 0)
        previous_ns = step.end_ns
    return found


def size_class(step: Step) -> int:
    """Return the class of a batch size."""
    return int(np.round(4 * np.log2(max(step.decode_tokens, 1))))


def medians(engine: Engine, cost: Mapping[int, int]) -> dict[int, float]:
    """Return the median cost of the steps without prefill by class of batch size."""
    by_size: dict[int, list[int]] = {}
    for step in engine.stored:
        if step.decode_tokens and not step.prefill_tokens:
            by_size.setdefault(size_class(step), []).append(cost[step.number])
    return {size: float(np.median(values)) for size, values in by_size.items()}


def compared_with(step: Step, known: Mapping[int, float]) -> float:
    """Return what a step would have cost without prefill."""
    if not step.decode_tokens:
        return 0.0
    smaller = [size for size in known if size <= size_class(step)]
    return known[max(smaller)] if smaller else known[min(known)]


def expect(served: Served) -> list[Expected]:
    """Compute what every request lost, one step of its decode after the other."""
    known: dict[str, tuple[dict[int, Step], dict[int, int], dict[int, float]]] = {}
    found = []
    for engine, request in served:
        if engine.engine_id not in known:
            cost = costs(engine)
            known[engine.engine_id] = {step.number: step for step in engine.stored}, cost, medians(engine, cost)
        steps, cost, pure = known[engine.engine_id]
        mixed = prefill = extra = 0.0
        tokens, decode_ns, begin_ns, moment_ns = 0, 0, 0, request.start_ns
        for stage in request.stages:
            if stage.name == "decode":
                begin_ns = begin_ns or moment_ns
                decode_ns += stage.wall_ns
                numbers = range(int(stage.extra[attributes.STEP_FIRST]), int(stage.extra[attributes.STEP_LAST]) + 1)
                tokens += len(numbers)
                for step in (steps[number] for number in numbers if number in steps):
                    if step.prefill_tokens:
                        mixed += step.weight * cost[step.number]
                        prefill += step.weight * step.prefill_tokens
                        extra += step.weight * (cost[step.number] - compared_with(step, pure))
            moment_ns += stage.wall_ns
        if tokens:
            found.append(Expected(engine, request, begin_ns, decode_ns, tokens, mixed, prefill, extra))
    return found


def check(row: Interference, items: Sequence[Expected]) -> None:
    """Compare one line with what was computed for its requests."""
    extra = np.array([item.extra_ns for item in items])
    decode_ns = sum(item.decode_ns for item in items)
    assert (row.requests, row.kept_count) == (len(items), len(items))
    assert row.tokens == sum(item.tokens for item in items)
    assert row.decode_ns == decode_ns
    assert row.mixed_ns == pytest.approx(sum(item.mixed_ns for item in items))
    assert row.mixed_ratio == pytest.approx(sum(item.mixed_ns for item in items) / decode_ns)
    assert row.prefill_tokens == pytest.approx(np.mean([item.prefill_tokens for item in items]))
    assert row.extra_ns == pytest.approx(extra.sum())
    assert row.extra_ratio == pytest.approx(extra.sum() / decode_ns)
    assert row.extra_per_token_ns == pytest.approx(extra.sum() / row.tokens)
    for name, quantile in (("p50", 50), ("p95", 95), ("p99", 99)):
        assert getattr(row, f"extra_{name}_ns") == pytest.approx(np.percentile(extra, quantile))
    assert row.extra_max_ns == pytest.approx(extra.max())
    worst = max(items, key=lambda item: item.extra_ns)
    assert row.worst_trace_id == worst.request.trace_id.hex()


def check_itl(row: Interference, engines: Iterable[Engine]) -> None:
    """Compare the gaps between tokens with those of NumPy."""
    for kind in ("mixed", "pure"):
        gaps: list[int] = []
        steps = 0.0
        for engine in engines:
            cost = costs(engine)
            for step in engine.stored:
                if step.decode_tokens and (step.prefill_tokens > 0) == (kind == "mixed"):
                    steps += step.weight
                    gaps += [cost[step.number] + step.idle_ns] * round(step.weight * step.decode_tokens)
        assert getattr(row, f"{kind}_steps") == steps
        for quantile in (50, 95, 99):
            expected = np.percentile(gaps, quantile)
            assert getattr(row, f"{kind}_itl_p{quantile}_ns") == pytest.approx(expected)


def test_extra_by_engine_is_that_of_a_walk_over_the_steps(
    client: Client, served: Served, engines: list[Engine], engine_window: Window
) -> None:
    """Many engines with the same step numbers, each against its own steps; overlapping and sampled ones too."""
    report = interference_report(client, engine_window, by="engine")
    expected = expect(served)
    assert {row.key for row in report.rows} == {engine.engine_id for engine in engines}
    for row in report.rows:
        check(row, [item for item in expected if item.engine.engine_id == row.key])
        check_itl(row, [engine for engine in engines if engine.engine_id == row.key])
    assert [row.extra_ns for row in report.rows] == sorted((row.extra_ns or 0 for row in report.rows), reverse=True)


@pytest.mark.parametrize("by", ["model", "instance", "all"])
def test_lines_add_up_their_engines(
    client: Client, served: Served, engines: list[Engine], engine_window: Window, by: str
) -> None:
    """A line for a model, an instance, or everything holds the requests and steps of all of its engines."""
    key = KEYS[by]
    rows = interference_report(client, engine_window, by=by).rows
    expected = expect(served)
    assert {row.key for row in rows} == {key(engine) for engine in engines}
    for row in rows:
        check(row, [item for item in expected if key(item.engine) == row.key])
        check_itl(row, [engine for engine in engines if key(engine) == row.key])


def test_the_most_slowed_requests_come_first(client: Client, served: Served, engine_window: Window) -> None:
    """By request, each line is one request under its trace id, the largest extra first, as many as were asked for."""
    rows = interference_report(client, engine_window, by="request", limit=40).rows
    expected = sorted(expect(served), key=lambda item: -item.extra_ns)[:40]
    assert [row.key for row in rows] == [item.request.trace_id.hex() for item in expected]
    for row, item in zip(rows, expected, strict=True):
        check(row, [item])
        assert (row.mixed_steps, row.pure_steps, row.mixed_itl_p50_ns) == (0, 0, None)


def test_minutes_are_in_the_order_of_time(client: Client, served: Served, engine_window: Window) -> None:
    """By minute, a request belongs to the minute in which its decode began."""
    rows = interference_report(client, engine_window, by="minute").rows
    expected = expect(served)
    assert [row.key for row in rows] == sorted(row.key for row in rows)
    for row in rows:
        minute = [item for item in expected if iso(item.decode_start_ns)[:16].replace("T", " ") == row.key]
        check(row, minute)


def test_a_filter_chooses_requests_but_not_whose_prefills_count(
    client: Client, served: Served, engine_window: Window
) -> None:
    """Of one instance's requests, steps of other engines play no part, and those of its own all do."""
    (row,) = interference_report(client, engine_window, Filters(instance="engine-b.host", model="llama"), "model").rows
    check(row, [item for item in expect(served) if item.engine.engine_id == "engine-b"])


def test_one_request_alone(client: Client, served: Served) -> None:
    """A window that holds the begin of one decode gives one line; its medians are those of the steps around it."""
    item = expect(served)[-1]
    window = Window(item.decode_start_ns, item.decode_start_ns + 1)
    (row,) = interference_report(client, window, Filters(instance="engine-e.host"), "request").rows
    assert (row.key, row.requests, row.tokens) == (item.request.trace_id.hex(), 1, item.tokens)
    assert row.mixed_ns == pytest.approx(item.mixed_ns)
    assert row.prefill_tokens == item.prefill_tokens


def test_an_empty_window_has_no_lines(client: Client) -> None:
    """Without decodes there is nothing, whatever a line is about."""
    window = Window(traffic.BEGIN_NS - 10 * MINUTE_NS, traffic.BEGIN_NS - 5 * MINUTE_NS)
    for by in ("model", "engine", "minute", "request", "all"):
        report = interference_report(client, window, by=by)
        assert report.rows == ()
        assert diagnose(report) == ""
        assert cautions(report) == []


def test_without_a_step_to_compare_with_extra_is_unknown(client: Client, pair_window: Window) -> None:
    """An engine whose every step computed prompts has mixed time but no extra, and the report says why."""
    report = interference_report(client, pair_window, by="engine")
    (row,) = report.rows
    assert (row.key, row.tokens, row.mixed_ns) == ("engine-1", 20, 20 * 38_000_000)
    assert (row.extra_ns, row.extra_ratio, row.extra_per_token_ns, row.extra_p99_ns) == (None, None, None, None)
    assert (row.mixed_steps, row.pure_steps, row.pure_itl_p50_ns) == (60, 0, None)
    assert row.covered_ratio == pytest.approx(20 * 40 / 1150)
    assert diagnose(report) == ""
    assert [line.split(":")[0] for line in cautions(report)] == [
        "only 1 request",
        "an engine made no step without prefill",
        "the stored steps cover only 70 % of decode time",
    ]


def test_the_sentence_depends_on_how_much_it_is(client: Client, engine_window: Window) -> None:
    """Little interference sends the reader elsewhere, much names the knobs."""
    report = interference_report(client, engine_window, by="model")
    assert "--max-num-batched-tokens" in diagnose(report)
    assert most_slowed(report) == report.rows[0]
    rows = tuple(replace(row, extra_ratio=0.001) for row in report.rows)
    small = InterferenceReport(report.window, report.filters, "model", rows)
    assert diagnose(small).endswith("0.1 % of decode time; look elsewhere.")
