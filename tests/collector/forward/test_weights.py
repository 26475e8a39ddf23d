"""How many spans a sampled span stands for."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tailspan import attributes
from tailspan_collector.forward import weights
from tests.support.otlp_messages import string

SHARES = st.floats(1e-6, 0.999999)


@pytest.mark.parametrize(
    ("share", "digits"), [(0.5, "8"), (0.25, "c"), (0.05, "f3333"), (0.1, "e666"), (0.001, "ffbe77")]
)
def test_thresholds_are_those_of_the_specification(share: float, digits: str) -> None:
    """`th` is the rejected share of 2**56 in hexadecimal to four digits after leading `f`s."""
    assert f"{weights.threshold(share):014x}".rstrip("0") == digits


@given(SHARES)
def test_a_threshold_keeps_about_its_share(share: float) -> None:
    """The share that a threshold keeps is within 0.1 % of what was asked for."""
    kept = 1 - weights.threshold(share) / 2**56
    assert kept == pytest.approx(share, rel=1e-3)


def test_no_share_keeps_nothing() -> None:
    """A share of 0 has a threshold that no trace reaches."""
    assert weights.threshold(0.0) == 2**56


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "ot=th:c"),
        ("a=1,b=2", "ot=th:c,a=1,b=2"),
        ("a=1, ot=rv:12345678901234;x:y ,b=2", "ot=th:c;rv:12345678901234;x:y,a=1,b=2"),
        ("ot=th:8", "ot=th:c"),
        ("ot=th:e;p:1", "ot=th:e;p:1"),
        ("ot=th:zz", "ot=th:c"),
        ("ot=th:0", "ot=th:c"),
        (",,=,ot", "ot=th:c,=,ot"),
    ],
)
def test_trace_state_gets_the_threshold(before: str, after: str) -> None:
    """The threshold joins what the tracestate holds; one that is stricter already stays."""
    span = Span(trace_state=before)
    weights.adjust(span, weights.threshold(0.25))
    assert span.trace_state == after


def test_weights_of_our_spans_multiply() -> None:
    """A span of ours weighs 1/share, times the weight that it had; others have no weight added."""
    ours, sampled, other = (Span() for _ in range(3))
    for span in (ours, sampled):
        span.attributes.append(string(attributes.ROLE, attributes.ROLE_REQUEST))
    sampled.attributes.add(key=attributes.WEIGHT).value.double_value = 10
    for span in (ours, sampled, other):
        weights.adjust(span, weights.threshold(0.25))
    found = [{item.key: item.value.double_value for item in span.attributes} for span in (ours, sampled, other)]
    assert [weight.get(attributes.WEIGHT) for weight in found] == [4, 40, None]


def test_a_span_that_was_sampled_more_strictly_before_keeps_its_weight() -> None:
    """A trace that a caller kept with a probability of 1/16 is in a share of 1/4 for sure: nothing changes."""
    span = Span(trace_state="ot=th:f")
    span.attributes.append(string(attributes.ROLE, attributes.ROLE_REQUEST))
    span.attributes.add(key=attributes.WEIGHT).value.double_value = 16
    before = span.SerializeToString()
    weights.adjust(span, weights.threshold(0.25))
    assert span.SerializeToString() == before


@given(SHARES, st.text(alphabet="ot=th:;,rv0af \t", max_size=60))
def test_any_trace_state_is_survived_and_done_once(share: float, trace_state: str) -> None:
    """Whatever a sender writes into tracestate, it gets one threshold, and a second time changes nothing."""
    span = Span(trace_state=trace_state)
    weights.adjust(span, weights.threshold(share))
    once = span.trace_state
    assert once.startswith("ot=th:")
    weights.adjust(span, weights.threshold(share))
    assert span.trace_state == once


def test_weighted_counts_are_right_on_average() -> None:
    """The kept share times its weight gives the number of all, within three standard deviations."""
    random.seed(3)
    least, total = weights.threshold(0.05), 100_000
    kept = sum(random.getrandbits(56) >= least for _ in range(total))
    weight = 2**56 / (2**56 - least)
    assert abs(kept * weight - total) < 3 * weight * (total * 0.05 * 0.95) ** 0.5
