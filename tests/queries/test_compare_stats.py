"""What a comparison says of made-up requests whose truth is known, against NumPy and SciPy."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tailspan_queries.compare import BEYOND, compare, needed
from tailspan_queries.compare_records import LEVELS, REQUEST, STATISTICS, Comparison, Line, Sample
from tailspan_queries.stats_blocks import Side, bins, differences, draw, drawn
from tailspan_queries.stats_quantiles import interpolated_rows, quantiles
from tailspan_queries.stats_strata import LEAST, stratify
from tailspan_queries.stats_student import student_quantile, student_tail
from tests.queries import compare_traffic as made
from tests.queries.compare_traffic import HOUR_NS, Truth
from tests.queries.traffic import BEGIN_NS


def sample(truth: Truth, seed: int, hour: int = 0) -> Sample:
    """Return the requests of an hour."""
    begin_ns = BEGIN_NS + hour * HOUR_NS
    return made.sample(made.make(truth, begin_ns, seed), begin_ns)


def line(report: Comparison, part: str, statistic: str) -> Line:
    """Return a line that is there."""
    found = report.line(part, statistic)
    assert found is not None
    return found


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50))
def test_percentiles_of_equal_weights_are_those_of_numpy(values: list[float]) -> None:
    """With equal weights, whatever they are, a percentile is that of numpy.percentile."""
    array = np.array(values)
    for weight in (1.0, 10.0):
        found = quantiles(array, np.full(len(array), weight), LEVELS)
        np.testing.assert_allclose(found, np.quantile(array, LEVELS), rtol=1e-9, atol=1e-6)


def test_weighted_percentiles_are_those_of_repeated_values() -> None:
    """A percentile is that of the values repeated by their weights, to the gap between two values."""
    random = np.random.default_rng(2)
    values, weights = random.normal(100, 10, 5000), random.integers(1, 6, 5000)
    expected = np.quantile(np.repeat(values, weights), LEVELS)
    np.testing.assert_allclose(quantiles(values, weights.astype(float), LEVELS), expected, rtol=2e-3)


def test_no_values_have_no_percentile() -> None:
    """Of nothing every percentile is NaN, which the reader turns into None."""
    assert np.isnan(quantiles(np.zeros(0), np.zeros(0), LEVELS)).all()
    assert np.isnan(interpolated_rows(np.array([1.0]), np.zeros((1, 1)), LEVELS)).all()


@pytest.mark.parametrize("freedom", [1, 2, 7, 29, 200])
def test_students_distribution_is_that_of_scipy(freedom: int) -> None:
    """Tail chance and quantile agree with scipy.stats.t."""
    for t in (0.0, 0.5, 1.96, -3.0, 12.0):
        assert student_tail(t, freedom) == pytest.approx(2 * stats.t.sf(abs(t), freedom), rel=1e-4, abs=1e-9)
    assert student_quantile(0.05, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-4)
    assert student_tail(float("inf"), freedom) == 0


def test_every_stratum_has_requests_of_both_samples() -> None:
    """Cells are joined until each stratum has the least number of requests of each side, whatever the lengths."""
    before, after = sample(Truth(), 1), sample(Truth(count=300, output_median=900), 2)
    strata = stratify((before.input_tokens, before.output_tokens), (after.input_tokens, after.output_tokens))
    assert strata.count > 1
    for numbers in (strata.before, strata.after):
        assert np.bincount(numbers, minlength=strata.count).min() >= LEAST
    outputs = [np.median(before.output_tokens[strata.before == number]) for number in range(strata.count)]
    assert stats.spearmanr(outputs, range(strata.count)).statistic > 0.9


def test_lengths_that_the_earlier_sample_never_had_are_told() -> None:
    """The share of later requests in cells without an earlier one is counted."""
    short, long = np.full(100, 10), np.full(100, 5000)
    assert stratify((short, short), (long, long)).uncovered_ratio == 1
    assert stratify((short, short), (short, short)).uncovered_ratio == 0


def test_the_numbers_are_those_of_numpy() -> None:
    """Before, after and adjusted are what NumPy computes from the same requests and strata."""
    before, after = sample(Truth(), 3), sample(Truth(output_median=220), 4, 1)
    report = compare(before, after)
    strata = stratify((before.input_tokens, before.output_tokens), (after.input_tokens, after.output_tokens))
    shares = [np.bincount(found, minlength=strata.count) / len(found) for found in (strata.before, strata.after)]
    weights = (shares[1] / shares[0])[strata.before]
    for part, found in before.parts.items():
        old, new = found.wall_ns, after.parts[part].wall_ns
        for statistic, level in STATISTICS.items():
            row = line(report, part, statistic)
            if level is None:
                expected = old.mean(), np.average(old, weights=weights), new.mean()
            else:
                expected = np.quantile(old, level), float(quantiles(old, weights, [level])[0]), np.quantile(new, level)
            assert (row.before_ns, row.adjusted_ns, row.after_ns) == pytest.approx(expected)
            assert row.before_ns is not None
            assert row.mix_ns is not None
            assert row.change_ns is not None
            assert row.before_ns + row.mix_ns + row.change_ns == pytest.approx(row.after_ns)


def test_the_interval_is_that_of_a_plain_bootstrap_of_blocks() -> None:
    """Without adjustment the interval agrees with one that concatenates drawn blocks and asks numpy.percentile."""
    before, after = sample(Truth(swing=0.2), 5), sample(Truth(swing=0.2), 6, 1)
    report = compare(before, after, adjust=False)
    random = np.random.default_rng(1)
    sides = []
    for item in (before, after):
        walls = item.parts[REQUEST].wall_ns
        groups = [walls[item.blocks == number] for number in range(item.block_count)]
        drawn_blocks = random.integers(0, len(groups), (1000, len(groups)))
        values = [np.concatenate([groups[number] for number in row]) for row in drawn_blocks]
        sides.append(np.array([[value.mean(), *np.quantile(value, LEVELS)] for value in values]))
    widened = np.sqrt(30 / 29) * stats.t.ppf(0.975, 29) / stats.norm.ppf(0.975)
    for number, statistic in enumerate(STATISTICS):
        row = line(report, REQUEST, statistic)
        low, high = np.quantile(sides[1][:, number] - sides[0][:, number], [0.025, 0.975])
        assert row.low_ns is not None
        assert row.high_ns is not None
        assert row.change_ns is not None
        width = (high - low) * widened
        assert row.high_ns - row.low_ns == pytest.approx(width, rel=0.15)
        middle = (low + high) / 2
        assert (row.low_ns + row.high_ns) / 2 == pytest.approx(middle, abs=0.15 * width)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Of two hundred comparisons of like with like some 5 % have an interval without 0, though blocks differ."""
    wrong = dict.fromkeys(("mean", "p50", "p95"), 0)
    for seed in range(200):
        sides = []
        for number in (0, 1):
            random = np.random.default_rng((seed, number))
            blocks = np.sort(random.integers(0, 30, 450))
            shared = random.normal(0, 0.3, 30)[blocks]
            values = np.exp(random.normal(0, 0.5, 450) + shared)
            sides.append(Side(values, np.ones(450), blocks, np.zeros(450, np.int64)))
        found = differences(*sides, draw(*sides, (30, 30), 1, paired=False, draws=200), (0.5, 0.95))
        for name, item in zip(wrong, found, strict=True):
            assert item.low is not None
            assert item.high is not None
            wrong[name] += not item.low <= 0 <= item.high
    assert all(2 <= count <= 22 for count in wrong.values()), wrong


def test_a_better_median_with_a_worse_tail_is_told_loudly() -> None:
    """The planted change is found at both ends and comes as a line of its own."""
    report = compare(sample(Truth(), 7), sample(Truth(factors={"decode": 0.8}, slow_ratio=0.03, slow_factor=150), 8, 1))
    assert line(report, REQUEST, "p50").verdict == "better"
    assert line(report, REQUEST, "p99").verdict == "worse"
    loud = [text for text in report.findings if text.startswith("THE MEDIAN IMPROVED AND THE TAIL GOT WORSE")]
    assert "end-to-end p50 -1" in loud[0]
    assert any(text.startswith("queue p99 got worse") for text in report.findings) == (
        line(report, REQUEST, "p99").verdict == "better"
    )


def test_a_stage_that_moves_against_the_whole_is_named() -> None:
    """A faster decode hides a slower prefill from the end-to-end time, but not from the findings."""
    report = compare(sample(Truth(), 9), sample(Truth(factors={"decode": 0.7, "prefill": 1.8}), 10, 1))
    assert line(report, REQUEST, "mean").verdict == "better"
    assert any(text.startswith("prefill mean got worse (+7") for text in report.findings)


@pytest.mark.parametrize("seed", range(3))
def test_a_changed_mix_is_no_change(seed: int) -> None:
    """Longer outputs alone move the percentiles by half, and none of that is left as change."""
    report = compare(sample(Truth(), 20 + seed), sample(Truth(output_median=230), 30 + seed, 1))
    for statistic in ("mean", "p50", "p95"):
        row = line(report, REQUEST, statistic)
        assert row.before_ns is not None
        assert row.mix_ns is not None
        assert row.after_ns is not None
        assert row.mix_ns / row.before_ns > 0.3
        assert row.ratio(row.change_ns) == pytest.approx(0, abs=0.06)
    unadjusted = compare(sample(Truth(), 20 + seed), sample(Truth(output_median=230), 30 + seed, 1), adjust=False)
    assert line(unadjusted, REQUEST, "p50").verdict == "worse"
    assert line(unadjusted, REQUEST, "p50").mix_ns == 0
    assert any(text.startswith("other prompt and output lengths alone moved") for text in report.cautions)
    effects = {effect.statistic: effect for effect in report.mix}
    for statistic in ("mean", "p50", "p95"):
        row, effect = line(report, REQUEST, statistic), effects[statistic]
        assert row.mix_ns is not None
        assert row.before_ns is not None
        assert effect.low_ratio is not None
        assert effect.high_ratio is not None
        assert effect.ratio == pytest.approx(row.mix_ns / row.before_ns)
        assert 0 < effect.low_ratio < effect.ratio < effect.high_ratio
    assert not unadjusted.mix


def test_lengths_that_differ_by_chance_are_not_told() -> None:
    """Two samples of the same lengths: what the mix did is within its interval in at least 34 of 40 of them."""
    certain = told = 0
    for seed in range(40):
        report = compare(sample(Truth(count=800), seed), sample(Truth(count=800), 100 + seed, 1), draws=200)
        certain += next(effect.certain for effect in report.mix if effect.statistic == "p50")
        told += any(text.startswith("other prompt and output lengths") for text in report.cautions)
    assert certain <= 6
    assert told <= 8


def test_a_real_change_shows_through_a_changed_mix() -> None:
    """A decode that is 20 % slower is found as such though outputs got shorter and the raw median fell."""
    report = compare(sample(Truth(count=4000), 40), sample(Truth(4000, 110, {"decode": 1.2}), 41, 1))
    row = line(report, "decode", "p50")
    assert row.after_ns is not None
    assert row.before_ns is not None
    assert row.after_ns < row.before_ns
    assert row.verdict == "worse"
    assert row.change_ratio == pytest.approx(0.2, abs=0.04)


def test_too_few_requests_are_told_by_statistic() -> None:
    """A percentile without ten requests beyond it on each side has no interval and no verdict."""
    assert [needed(level) for level in (None, 0.5, 0.9, 0.95, 0.99)] == [30, 20, 100, 200, 1000]
    report = compare(
        sample(Truth(count=150), 50), sample(Truth(count=5000, factors={"decode": 2}), 51, 1), adjust=False
    )
    told = {name: line(report, REQUEST, name).too_few for name in STATISTICS}
    assert told == {"mean": False, "p50": False, "p90": False, "p95": True, "p99": True}
    assert line(report, REQUEST, "p99").verdict == "unclear"
    assert line(report, REQUEST, "p99").low_ns is None
    assert any(
        f"only 150 requests on a side: too few for p95, p99 ({BEYOND} beyond" in text for text in report.cautions
    )
    assert any("arrival rate" in text for text in report.cautions)


@pytest.mark.parametrize("counts", [(0, 100), (100, 0), (0, 0)])
def test_a_side_without_requests_gives_no_lines(counts: tuple[int, int]) -> None:
    """An empty side leaves the report without lines, findings or NaN."""
    report = compare(sample(Truth(count=counts[0]), 60), sample(Truth(count=counts[1]), 61, 1))
    assert report.lines == report.findings == report.cautions == ()


def test_one_request_on_each_side_is_told_without_verdict() -> None:
    """Two requests have values and nothing more."""
    report = compare(sample(Truth(count=1), 62), sample(Truth(count=1), 63, 1))
    assert all(row.verdict == "unclear" and row.too_few and row.low_ns is None for row in report.lines)
    assert line(report, REQUEST, "p99").before_ns == line(report, REQUEST, "mean").before_ns
    assert any("only 1 request on a side" in text for text in report.cautions)


def test_a_stage_that_only_one_side_has_is_shown_and_told() -> None:
    """A new stage has no before, and its appearance is a caution."""
    before, after = sample(Truth(), 64), sample(Truth(), 65, 1)
    parts = {name: part for name, part in before.parts.items() if name != "receive"}
    report = compare(replace(before, parts=parts), after)
    row = line(report, "receive", "p50")
    assert (row.before_ns, row.adjusted_ns, row.verdict) == (None, None, "unclear")
    assert row.after_ns == pytest.approx(np.median(after.parts["receive"].wall_ns))
    assert "receive: in 0.0% of requests before, 100.0% after" in report.cautions


def test_requests_in_few_blocks_have_no_interval() -> None:
    """A burst within four blocks of thirty cannot tell how blocks differ."""
    before, after = sample(Truth(), 66), sample(Truth(factors={"decode": 3}), 67, 1)
    report = compare(replace(before, blocks=before.blocks % 4), after)
    assert line(report, REQUEST, "p50").verdict == "unclear"
    assert any("in only 4 blocks of time" in text for text in report.cautions)


def test_errors_that_became_more_are_told() -> None:
    """A rise of the share of failed requests is a caution, as they look fast."""
    before, after = sample(Truth(), 68), sample(Truth(), 69, 1)
    failed = (np.arange(after.size) % 20 == 0).astype(np.int64)
    report = compare(before, replace(after, failed=failed))
    assert any(text.startswith("errors 0.0% → 5.0% of requests") for text in report.cautions)


def test_sampled_requests_count_with_their_weight() -> None:
    """A tenth of the fast requests with weight ten says what all of them say."""
    everything, after = sample(Truth(count=20_000), 70), sample(Truth(count=20_000), 71, 1)
    slow = everything.parts[REQUEST].wall_ns > np.quantile(everything.parts[REQUEST].wall_ns, 0.95)
    kept = np.flatnonzero(slow | (np.random.default_rng(1).random(everything.size) < 0.1))
    thinned = replace(
        everything,
        blocks=everything.blocks[kept],
        weights=np.where(slow[kept], 1.0, 10.0),
        input_tokens=everything.input_tokens[kept],
        output_tokens=everything.output_tokens[kept],
        failed=everything.failed[kept],
        parts={
            name: replace(part, requests=np.arange(len(kept)), wall_ns=part.wall_ns[kept])
            for name, part in everything.parts.items()
        },
    )
    full, part = compare(everything, after), compare(thinned, after)
    for statistic, tolerance in (("mean", 0.02), ("p50", 0.03), ("p99", 0.02)):
        for name in ("before_ns", "adjusted_ns"):
            expected = getattr(line(full, REQUEST, statistic), name)
            assert getattr(line(part, REQUEST, statistic), name) == pytest.approx(expected, rel=tolerance)


def test_the_same_blocks_are_drawn_of_versions_that_ran_side_by_side() -> None:
    """What happened to both at the same time is no difference: the interval is narrower than of separate draws."""
    shared = np.repeat(np.random.default_rng(3).normal(0, 0.5, 30), 40)
    blocks = np.repeat(np.arange(30), 40)
    sides = [
        Side(np.exp(shared + np.random.default_rng(seed).normal(0, 0.1, 1200)), np.ones(1200), blocks, blocks * 0)
        for seed in (4, 5)
    ]
    together, apart = (
        differences(*sides, draw(*sides, (30, 30), 1, paired=paired), (0.5,))[0] for paired in (True, False)
    )
    assert together.low is not None
    assert together.high is not None
    assert apart.low is not None
    assert apart.high is not None
    assert together.high - together.low < (apart.high - apart.low) / 5


def test_bins_are_the_values_where_these_are_few() -> None:
    """Up to 128 distinct values each has a bin of its own; of more, bins follow the quantiles, finer in the tail."""
    edges, centers = bins(np.array([3.0, 1.0, 3.0, 2.0]))
    assert centers.tolist() == [1, 2, 3]
    assert np.searchsorted(edges, [1, 2, 3], "right").tolist() == [0, 1, 2]
    values = np.random.default_rng(5).lognormal(0, 1, 50_000)
    edges, centers = bins(values)
    assert len(centers) == len(edges) + 1 <= 130
    assert (np.diff(centers) >= 0).all()
    beyond = np.searchsorted(edges, np.quantile(values, [0.98, 0.995]))
    assert beyond[1] - beyond[0] > 8


def test_draws_begin_with_the_data_and_have_as_many_blocks() -> None:
    """The first draw is every block once, and each has as many blocks as there are."""
    counts = drawn(np.random.default_rng(1), 12, 50)
    assert counts.shape == (51, 12)
    assert (counts[0] == 1).all()
    assert (counts.sum(axis=1) == 12).all()
