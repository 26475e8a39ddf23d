"""`LatencyOptimizer` and claims: the arithmetic of a published tuning story, and what it leaves open."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import tailspan_queries
from tailspan.errors import UserError
from tailspan_queries import LatencyOptimizer
from tailspan_queries.optimizations_account import claimed, count_once, spans_another
from tailspan_queries.optimizations_import import shipped
from tailspan_queries.optimizations_output import ledger_json
from tailspan_queries.optimizations_records import Account, Claim, Optimization, Prices
from tailspan_queries.times import Window

STORY = {"tls": (3.5, 0.1), "tokenize": (3.0, 0.8), "queue": (1800.0, 420.0), "prefill": (380.0, 210.0)}
TOTAL = (2850.0, 950.0)
DECODE = (35.0, 22.0)
MS = 1e6


def story(tokens: float | None = None) -> Account:
    """Return the account of the story as a user would type it in."""
    optimizer = LatencyOptimizer()
    for layer, (before_ms, after_ms) in STORY.items():
        optimizer.record_optimization(layer, before_ms, after_ms, cost="work")
    optimizer.record_optimization("decode", *DECODE, per="token", tokens=tokens)
    (account,) = optimizer.generate_report(*TOTAL).accounts
    return account


def test_the_story_says_66_7_per_cent() -> None:
    """2,850 to 950 ms is two thirds less; each item has its share of the 1,900 ms, the largest first."""
    account = story()
    assert account.improvement_ratio == pytest.approx(2 / 3)
    assert account.change_ns == 1900 * MS
    gains = {effect.optimization.stage: effect.gain_ns for effect in account.effects if effect.per == "request"}
    assert list(gains) == ["queue", "prefill", "tls", "tokenize"]
    for stage, (before_ms, after_ms) in STORY.items():
        assert gains[stage] == pytest.approx(((before_ms - after_ms) * MS,) * 2)
        effect = next(found for found in account.effects if found.optimization.stage == stage)
        assert effect.improvement_ratio == pytest.approx((before_ms - after_ms) / before_ms)
    shares = [account.share(low) for low, _ in gains.values()]
    assert shares == pytest.approx([0.72632, 0.08947, 0.00179, 0.00116], abs=1e-5)


def test_what_decode_gained_depends_on_tokens_that_nobody_said() -> None:
    """At most 14.5 tokens fit into the 950 ms, so decode explains 0 to 188.6 ms and 155.8 ms at least nobody explains.

    The whole 344.4 ms that the others leave would take 26.5 tokens, more than fit.
    """
    account = story()
    listed = np.array(list(STORY.values()))
    rest = np.array(TOTAL) - listed.sum(axis=0)
    fitting = rest / np.array(DECODE)
    assert fitting == pytest.approx([18.957, 14.5045], abs=1e-3)
    assert account.tokens == pytest.approx((0, fitting.min()))
    decode = next(effect for effect in account.effects if effect.per == "token")
    assert decode.gain_ns == pytest.approx((0, fitting.min() * 13 * MS))
    left = TOTAL[0] - TOTAL[1] - (listed[:, 0] - listed[:, 1]).sum()
    assert left == pytest.approx(344.4)
    assert account.unexplained_ns == pytest.approx(((left - fitting.min() * 13) * MS, left * MS))
    assert account.unexplained_ns[0] == pytest.approx(155.84 * MS, rel=1e-4)
    assert account.tokens_needed == pytest.approx(left / 13) == pytest.approx(26.492, abs=1e-3)
    assert left / 13 > fitting.min()


def test_with_the_tokens_said_the_remainder_is_a_number() -> None:
    """With 12 tokens an answer decode gained 156 ms, and 188.4 ms stay unexplained."""
    account = story(12)
    assert account.tokens is None
    assert account.tokens_needed is None
    assert account.unexplained_ns == pytest.approx((188.4 * MS,) * 2)
    assert "unexplained: 188 ms (9.9%)" in str(LatencyOptimizerReport(account))


def LatencyOptimizerReport(account: Account) -> object:  # noqa: N802 (reads as a type)
    """Return a report of one account."""
    from tailspan_queries.optimizations_records import LedgerReport

    return LedgerReport((account,))


def test_the_story_is_shipped() -> None:
    """The shipped file holds the same numbers, and its report says that they are claims."""
    assert shipped() == ("tuning-story",)
    report = LatencyOptimizer.from_claims("tuning-story").generate_report()
    (account,) = report.accounts
    typed = story()
    assert account.unexplained_ns == pytest.approx(typed.unexplained_ns)
    assert account.listed_ns == pytest.approx(typed.listed_ns)
    text = str(report)
    assert "2.85 s -> 950 ms, 66.7 % better" in text
    assert "nothing here was measured" in text
    assert text.count("(claim)") == 5
    assert "at most 14.5 fit into the totals, 26.5 would explain" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100


def test_without_a_total_nothing_is_said_of_shares() -> None:
    """Items alone have improvements but no share and no remainder; an unknown end of a range is null in JSON."""
    optimizer = LatencyOptimizer()
    optimizer.record_optimization("decode", *DECODE, per="token")
    report = optimizer.generate_report()
    (account,) = report.accounts
    assert account.share(1.0) is None
    assert account.effects[0].gain_ns == (0, math.inf)
    assert "no total known" in str(report)
    assert ledger_json(report)["accounts"][0]["unexplained_ratio"] == [None, None]


def test_a_change_for_the_worse_is_no_gain() -> None:
    """A stage that became slower has a negative share, and the remainder is larger for it."""
    optimizer = LatencyOptimizer()
    optimizer.record_optimization("queue", 100, 120)
    (account,) = optimizer.generate_report(200, 180).accounts
    assert account.effects[0].improvement_ratio == pytest.approx(-0.2)
    assert account.share(account.effects[0].gain_ns[0]) == pytest.approx(-1)
    assert account.unexplained_ns == pytest.approx((40 * MS, 40 * MS))


def test_prices_change_the_order() -> None:
    """What gains more but costs memory comes second once a GiB is worth more than the difference."""
    optimizer = LatencyOptimizer()
    optimizer.record_optimization("queue", 100, 50, cost_gpu_memory_bytes=2 * 2**30)
    optimizer.record_optimization("prefill", 100, 60, cost_accuracy_points=0.5)
    plain = optimizer.generate_report(300, 200).accounts[0].effects
    priced = optimizer.generate_report(300, 200, prices=Prices(10 * MS, 4 * MS)).accounts[0].effects
    assert [effect.optimization.stage for effect in plain] == ["queue", "prefill"]
    assert [effect.optimization.stage for effect in priced] == ["prefill", "queue"]
    assert [effect.worth_ns(Prices(10 * MS, 4 * MS))[0] for effect in priced] == pytest.approx([38 * MS, 30 * MS])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"before_ms": 1.0}, "it is not clear what to compare"),
        ({"before_ms": -1.0, "after_ms": 0.0}, "before_ms is -1.0"),
        ({"before_ms": math.nan, "after_ms": 0.0}, "before_ms is nan"),
        ({"before": Window(0, 1), "after": Window(1, 2)}, "only be measured with a client"),
        ({"before_ms": 1.0, "after_ms": 1.0, "before": Window(0, 1), "after": Window(1, 2)}, "not clear"),
    ],
)
def test_half_an_entry_is_an_error(arguments: dict[str, float], words: str) -> None:
    """What cannot be compared is refused with one line."""
    with pytest.raises(UserError, match=words):
        LatencyOptimizer().record_optimization("queue", **arguments)  # type: ignore[arg-type]


def test_layers_of_the_model_are_named_as_elsewhere() -> None:
    """A layer may be a stage, a part of the model, or in a claim any other word."""
    optimizer = LatencyOptimizer()
    names = ("Queue", "12/attention", "layer 3", "mlp")
    places = [optimizer.record_optimization(name, 2, 1).place for name in names]
    assert places[0] == "queue"
    parts = [(item.layer, item.kind) for item in optimizer.optimizations]
    assert parts == [(None, ""), (12, "attention"), (3, ""), (None, "mlp")]


def test_the_package_has_no_other_lazy_names() -> None:
    """A name that is not there is an error, as of any module."""
    with pytest.raises(AttributeError, match="no attribute 'LatencyOptimiser'"):
        _ = tailspan_queries.LatencyOptimiser


def windowed(name: str, stage: str, before: tuple[int, int], after: tuple[int, int], kind: str = "") -> Optimization:
    """Return an entry with windows."""
    return Optimization(name, name, stage, kind=kind, before=Window(*before), after=Window(*after))


def counted(*items: Optimization) -> list[str]:
    """Return the names of those that count."""
    effects = [replace(claimed(item, Claim(2, 1)), origin="measured") for item in items]
    return [effect.optimization.name for effect in count_once(effects) if effect.counted]


def test_the_same_change_counts_once() -> None:
    """Two entries of one stage with one window count once; of two stages, or one after the other, both count."""
    first = windowed("a", "queue", (0, 10), (10, 20))
    assert counted(first, windowed("b", "queue", (0, 10), (15, 25))) == ["a"]
    assert counted(first, windowed("b", "decode", (0, 10), (10, 20))) == ["a", "b"]
    assert counted(first, windowed("b", "queue", (10, 20), (20, 30))) == ["a", "b"]


def test_a_part_lies_within_prefill_and_decode_and_all_within_the_request() -> None:
    """An entry about attention and one about decode are about the same time; end-to-end gives way to its stages."""
    decode, attention = windowed("a", "decode", (0, 10), (10, 20)), windowed("b", "", (0, 10), (10, 20), "attention")
    assert counted(decode, attention) == ["a"]
    assert counted(windowed("c", "queue", (0, 10), (10, 20)), attention) == ["c", "b"]
    assert counted(windowed("d", "request", (0, 10), (10, 20)), decode) == ["a"]


def test_a_step_in_between_is_told() -> None:
    """An entry whose windows span another's switch says so; one that begins after it does not."""
    first = replace(claimed(windowed("a", "queue", (0, 10), (10, 20)), Claim(2, 1)), origin="measured")
    wide = replace(claimed(windowed("b", "queue", (0, 10), (20, 30)), Claim(2, 1)), origin="measured")
    narrow = replace(claimed(windowed("c", "queue", (10, 20), (20, 30)), Claim(2, 1)), origin="measured")
    assert [line.split(" was")[0] for line in spans_another([first, wide])] == ["a"]
    assert spans_another([first, narrow]) == []
