"""Which requests keep their spans, and that their weights give the full population back."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cache
from itertools import accumulate

import pytest
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio, TraceIdRatioBased

from tailspan import attributes as attr
from tailspan.agent.ledger import Ledger, ledger
from tailspan.agent.sampling import MAX_MODELS, MIN_WINDOW, Sampler
from tailspan.agent.settings import AgentSettings, Head, Keep
from tests.support.finished import Box, finished, finished_step, pipeline


def account(e2e_ms: float = 100.0, **options: object) -> Ledger:
    """Return the ledger of a finished request."""
    found = ledger(finished(e2e_ms, **options))  # type: ignore[arg-type]
    assert found is not None
    return found


def sampler(**environment: str) -> Sampler:
    """Return the sampler of these variables alone."""
    found = AgentSettings.from_environment(environment)
    return Sampler(found.head, found.keep)


@cache
def population(count: int, seed: int) -> list[Ledger]:
    """Return requests with heavy-tailed durations, 2 % errors, 3 % disconnects and 1 % with the debug header."""
    rng = random.Random(seed)
    requests = []
    for _ in range(count):
        draw = rng.random()
        outcome = "error" if draw < 0.02 else "client_disconnect" if draw < 0.05 else "ok"
        debug = {attr.DEBUG: True} if rng.random() < 0.01 else {}
        requests.append(account(80 * rng.lognormvariate(0, 0.8), seed=rng, outcome=outcome, tokens=2, **debug))
    return requests


def percentile(weighted: Iterable[tuple[float, float]], share: float) -> float:
    """Return the smallest value at which the weights reach `share` of their sum."""
    ordered = sorted(weighted)
    sums = list(accumulate(weight for _, weight in ordered))
    return next(value for (value, _), total in zip(ordered, sums, strict=True) if total >= share * sums[-1])


def test_by_default_everything_is_kept_unless_the_caller_does_not_sample() -> None:
    """parentbased_always_on without rules: weight 1, and a caller's cleared flag is honoured."""
    default = sampler()
    assert default.request(account()) == 1
    assert default.request(account(parent=5, flags=1)) == 1
    assert default.request(account(parent=5, flags=0)) == 0
    assert default.step(finished_step(3).step) == 1


@pytest.mark.parametrize(
    ("name", "root", "sampled_child", "unsampled_child", "step"),
    [
        ("always_on", 1, 1, 1, 1),
        ("always_off", 0, 0, 0, 0),
        ("parentbased_always_on", 1, 1, 0, 1),
        ("parentbased_always_off", 0, 1, 0, 0),
    ],
)
def test_head_samplers_treat_callers_as_the_specification_says(
    name: str, root: float, sampled_child: float, unsampled_child: float, step: float
) -> None:
    """Only the parent-based ones look at the caller's flag."""
    head = sampler(OTEL_TRACES_SAMPLER=name)
    assert head.request(account()) == root
    assert head.request(account(parent=5, flags=1)) == sampled_child
    assert head.request(account(parent=5, flags=0)) == unsampled_child
    assert head.step(finished_step(3).step) == step


@pytest.mark.parametrize("name", ["traceidratio", "parentbased_traceidratio"])
def test_ratio_decides_as_the_sdk_does(name: str) -> None:
    """The same trace ids are kept as by the SDK's own sampler, so services that share a trace agree."""
    ours = sampler(OTEL_TRACES_SAMPLER=name, OTEL_TRACES_SAMPLER_ARG="0.25")
    sdk = {"traceidratio": TraceIdRatioBased(0.25), "parentbased_traceidratio": ParentBasedTraceIdRatio(0.25)}[name]
    rng = random.Random(1)
    kept = 0
    for item in (account(seed=rng) for _ in range(500)):
        weight = ours.request(item)
        assert weight in (0, 4)
        assert bool(weight) == sdk.should_sample(None, item.request.trace_id, "POST").decision.is_sampled()
        kept += weight > 0
    assert 80 < kept < 170


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("errors", {"error", "lost"}),
        ("aborts", {"client_disconnect", "cancelled"}),
        ("errors,aborts", {"error", "lost", "client_disconnect", "cancelled"}),
        ("header", {"debug"}),
        ("ratio=100%", {"ok", "error", "lost", "client_disconnect", "cancelled", "debug"}),
        ("ratio=0", set()),
    ],
)
def test_a_rule_keeps_its_class_and_nothing_else(rule: str, wanted: set[str]) -> None:
    """What a rule names is kept with weight 1; without a ratio the rest is dropped."""
    rules = sampler(TAILSPAN_KEEP=rule)
    weights = {name: rules.request(account(outcome=name)) for name in ("ok", *_BAD)}
    weights["debug"] = rules.request(account(**{attr.DEBUG: True}))
    assert {name for name, weight in weights.items() if weight} == wanted
    assert set(weights.values()) <= {0.0, 1.0}


_BAD = ("error", "lost", "client_disconnect", "cancelled")


def test_the_slowest_are_found_in_a_window_of_their_own_model() -> None:
    """Of 2,000 requests at 100 +- 20 ms about 5 % are kept, all of them slow; another model's times do not matter."""
    rules, rng = sampler(TAILSPAN_KEEP="slowest=5%"), random.Random(2)
    kept = []
    for _ in range(2000):
        assert rules.request(account(5000 + rng.random(), model="big", seed=rng)) in (0, 1)
        e2e_ms = rng.gauss(100, 20)
        if rules.request(account(max(e2e_ms, 75), seed=rng)):
            kept.append(e2e_ms)
    assert 70 <= len(kept) <= 150
    assert sum(value > 125 for value in kept) > 0.9 * len(kept)


def test_the_window_slides() -> None:
    """When a model becomes slower for good, what was slow becomes normal."""
    rules, rng = sampler(TAILSPAN_KEEP="slowest=5%"), random.Random(2)
    for _ in range(1000):
        rules.request(account(100 + rng.random()))
    kept = [rules.request(account(200 + rng.random())) for _ in range(2000)]
    assert sum(kept[:50]) == 50
    assert sum(kept[1000:]) < 90


def test_equal_durations_are_not_slow_and_a_young_window_does_not_tell() -> None:
    """Ties keep nothing; before the window has 20 requests nothing is called slow."""
    rules = sampler(TAILSPAN_KEEP="slowest=5%")
    assert [rules.request(account(100)) for _ in range(200)] == [0.0] * 200
    young = sampler(TAILSPAN_KEEP="slowest=5%")
    assert [young.request(account(100 + i)) for i in range(MIN_WINDOW)] == [0.0] * MIN_WINDOW
    assert young.request(account(500)) == 1


def test_windows_of_invented_models_are_bounded() -> None:
    """The window of the model that was idle longest makes room."""
    rules = sampler(TAILSPAN_KEEP="slowest=5%")
    for number in range(3 * MAX_MODELS):
        rules.request(account(model=f"m{number}"))
    assert len(rules._windows) == MAX_MODELS


@pytest.mark.parametrize(
    "environment",
    [
        {"TAILSPAN_KEEP": "errors,aborts,slowest=5%,header,ratio=10%"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.2"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5",
         "TAILSPAN_KEEP": "errors,slowest=10%,ratio=30%"},
    ],
    ids=["rules", "head", "both"],
)  # fmt: skip
def test_weighted_numbers_are_unbiased(environment: dict[str, str]) -> None:
    """Over 30 samples of 1,500 requests the mean weighted count, errors and sum hit the truth within 4 standard errors.

    A wrong weight, or coins that are not independent, is off by far more than a standard error may be, 5 %.
    """
    counts, errors, sums = [], [], []
    for seed in range(30):
        requests, chosen = population(1500, seed), sampler(**environment)
        weights = [(item, chosen.request(item)) for item in requests]
        total = sum(item.e2e_ns for item in requests)
        bad = sum(item.failed for item in requests)
        counts.append(sum(weight for _, weight in weights) / len(requests))
        errors.append(sum(weight for item, weight in weights if item.failed) / bad)
        sums.append(sum(weight * item.e2e_ns for item, weight in weights) / total)
    for found in (counts, errors, sums):
        mean = sum(found) / len(found)
        deviation = (sum((value - mean) ** 2 for value in found) / (len(found) - 1)) ** 0.5
        assert abs(mean - 1) < 4 * deviation / len(found) ** 0.5 + 1e-9
        assert deviation / len(found) ** 0.5 < 0.05


def test_weighted_percentiles_are_those_of_the_full_population() -> None:
    """p50 within 4 % and p99 within 6 % from about 15 % of the spans; unweighted, the sample's p50 is far off."""
    requests, chosen = population(20_000, 11), sampler(TAILSPAN_KEEP="errors,aborts,slowest=5%,header,ratio=10%")
    full = [(item.e2e_ns / 1e6, 1.0) for item in requests]
    kept = [(item.e2e_ns / 1e6, weight) for item in requests if (weight := chosen.request(item))]
    assert 0.1 < len(kept) / len(full) < 0.25
    assert sum(weight for _, weight in kept) == pytest.approx(len(full), rel=0.06)
    assert percentile(kept, 0.5) == pytest.approx(percentile(full, 0.5), rel=0.04)
    assert percentile(kept, 0.99) == pytest.approx(percentile(full, 0.99), rel=0.06)
    unweighted = percentile([(value, 1.0) for value, _ in kept], 0.5)
    assert unweighted > 1.2 * percentile(full, 0.5)


def test_steps_are_kept_at_the_ratio_of_head_and_rules() -> None:
    """Their weighted count is the number of steps; rules without a ratio keep no steps."""
    both = sampler(OTEL_TRACES_SAMPLER="traceidratio", OTEL_TRACES_SAMPLER_ARG="0.5", TAILSPAN_KEEP="errors,ratio=20%")
    weights = [both.step(finished_step(number, f"engine-{number % 3}").step) for number in range(20_000)]
    assert set(weights) == {0.0, 10.0}
    assert sum(weights) == pytest.approx(20_000, rel=0.07)
    assert sampler(TAILSPAN_KEEP="errors").step(finished_step(1).step) == 0


def test_spans_carry_the_weight_and_the_sampled_flag() -> None:
    """Request, stage and step spans say what they stand for; at weight 1 the attribute is absent."""

    def emitted(keep: Keep | None, head: Head) -> Box:
        box, rng = Box(), random.Random(4)
        line = pipeline(AgentSettings(head=head, keep=keep), box)
        line.emit([finished(seed=rng, parent=9, flags=0) for _ in range(60)], [finished_step(n) for n in range(60)])
        return box

    sampled = emitted(Keep(ratio=0.25), Head(parent_based=False)).spans
    assert {(span.attributes or {})[attr.ROLE] for span in sampled} == {"request", "stage", "step"}
    assert {(span.attributes or {})[attr.WEIGHT] for span in sampled} == {4.0}
    assert all(span.context.trace_flags.sampled for span in sampled)
    full = emitted(None, Head(parent_based=False)).spans
    assert len(full) == 60 * 8 + 60
    assert not any(attr.WEIGHT in (span.attributes or {}) for span in full)
