"""The sentence under the stage table, and the cautions."""

from dataclasses import replace

import pytest

from tailspan import attributes
from tailspan_queries.diagnosis import ADVICE, UNKNOWN_ADVICE, cautions, diagnose, needed, quantile_name
from tailspan_queries.records import Distribution, StageRow, Tail

TAIL = Tail(quantile=0.99, requests=10, threshold_ns=5e9, mean_ns=5.8e9)


def row(stage: str, share: float, tail_share: float, count: int = 2000) -> StageRow:
    """Return a stage with these shares."""
    times = Distribution(count, share * 1e12, 1, 1, 1, 1, 1, 1)
    return StageRow(stage, count, count, 0, share, tail_share, tail_share * TAIL.mean_ns, None, times, None, None)


def rows(*stages: StageRow, count: int = 2000) -> list[StageRow]:
    """Return stages and the request row."""
    return [*stages, row("request", 1.0, 1.0, count)]


def test_the_sentence_names_share_times_and_where_to_look() -> None:
    """The stage with the largest share of the tail comes first, with its time, and what to look at."""
    found = diagnose(rows(row("queue", 0.69, 0.71), row("decode", 0.31, 0.29)), TAIL)
    assert found == f"queue is 71 % of the p99 (4.12 s of 5.80 s): {ADVICE['queue']}."


def test_a_tail_unlike_the_rest_is_said() -> None:
    """The share over all requests is named when the tail differs from it."""
    found = diagnose(rows(row("queue", 0.2, 0.71), row("decode", 0.8, 0.29)), TAIL)
    assert "and 20 % over all requests: requests wait for the scheduler" in found


def test_a_close_second_is_named() -> None:
    """Two stages of nearly one size are both named."""
    assert "prefill is 50 % of the p99 (2.90 s of 5.80 s), decode 45 %:" in diagnose(
        rows(row("decode", 0.45, 0.45), row("prefill", 0.5, 0.5)), TAIL
    )


def test_an_idle_device_is_named() -> None:
    """If nearly every decode span carries a GPU time and it is a small part, the sentence says so; else it does not."""
    decode = row("decode", 0.9, 0.9)
    idle = replace(decode, gpu=replace(decode.wall, sum_ns=decode.wall.sum_ns * 0.3))
    assert "the GPU computes for only 30 % of it" in diagnose(rows(idle), TAIL)
    busy = replace(decode, gpu=replace(decode.wall, sum_ns=decode.wall.sum_ns * 0.9))
    assert "GPU" not in diagnose(rows(busy), TAIL)
    assert idle.gpu is not None
    partly = replace(idle, gpu=replace(idle.gpu, count=1000))
    assert "GPU" not in diagnose(rows(partly), TAIL)


def test_every_stage_has_its_own_advice() -> None:
    """No stage that tailspan emits is without advice, and no two share one; others get a general one."""
    assert set(ADVICE) == {*attributes.STAGES, attributes.UNATTRIBUTED}
    assert len(set(ADVICE.values())) == len(ADVICE)
    assert UNKNOWN_ADVICE in diagnose(rows(row("rerank", 1, 1)), TAIL)


def test_nothing_is_said_about_nothing() -> None:
    """Without requests there is no sentence and no caution."""
    assert diagnose([], TAIL) == ""
    assert cautions([], TAIL) == ()


def test_a_good_report_has_no_caution() -> None:
    """Enough requests, a closed ledger and no failures need no caution."""
    assert cautions(rows(row("queue", 0.97, 0.97), row("unattributed", 0.03, 0.05)), TAIL) == ()


@pytest.mark.parametrize(
    ("share", "tail_share", "text"),
    [(0.062, 0.01, "6.2 % of end-to-end time is unattributed"), (0.01, 0.2, "20.0 % of the tail is unattributed")],
)
def test_unattributed_time_is_a_caution(share: float, tail_share: float, text: str) -> None:
    """More than 5 % without a stage, over all requests or at the tail, is said."""
    found = cautions(rows(row("queue", 1 - share, 1 - tail_share), row("unattributed", share, tail_share)), TAIL)
    assert len(found) == 1
    assert text in found[0]
    assert "more than 5 %" in found[0]


def test_overlapping_stages_are_a_caution() -> None:
    """Stages that add up to more than the request are said to overlap."""
    (found,) = cautions(rows(row("queue", 1.1, 1.1), row("unattributed", -0.1, -0.1)), TAIL)
    assert "overlap" in found


def test_failed_requests_are_a_caution() -> None:
    """Failures are counted, and the reader is told that they are part of the times."""
    (found,) = cautions([row("queue", 1, 1), replace(row("request", 1, 1), error_count=12)], TAIL)
    assert found.startswith("12 of 2,000 requests failed")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "only 1 request: p99 and p99.9 rest on the slowest few (at least 100 and 1,000 needed)"),
        (99, "only 99 requests: p99 and p99.9 rest"),
        (100, "only 100 requests: p99.9 rests on the slowest few (at least 1,000 needed)"),
        (999, "only 999 requests: p99.9 rests"),
    ],
)
def test_too_few_requests_for_a_percentile_are_a_caution(count: int, text: str) -> None:
    """A percentile needs so many requests that one lies beyond it."""
    (found,) = cautions(rows(row("queue", 1, 1, count), count=count), TAIL)
    assert found.startswith(text)


def test_of_sampled_requests_those_kept_carry_the_percentiles() -> None:
    """A percentile rests on the requests that are stored, however many they stand for; failures are an estimate."""
    whole = replace(row("request", 1, 1, 20_000), kept_count=200, error_count=50)
    few, failed = cautions([row("queue", 1, 1), whole], TAIL)
    assert few.startswith("only 200 requests kept: p99.9 rests on the slowest few (at least 1,000 needed)")
    assert failed.startswith("about 50 of 20,000 requests failed")


def test_needed_requests_and_names_of_quantiles() -> None:
    """p99 needs a hundred requests, p99.9 a thousand."""
    assert [needed(q) for q in (0.5, 0.99, 0.999)] == [2, 100, 1000]
    assert [quantile_name(q) for q in (0.5, 0.99, 0.999)] == ["p50", "p99", "p99.9"]
