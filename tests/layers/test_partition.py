"""From marks to times: what is nested, what gaps belong to, and what the marks themselves take."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailspan.layers.partition import LEFT, PART, partition

PARTS = 4
OTHER = 3
EMPTY = PARTS


@dataclass
class Call:
    """A timed call: its part, and what runs in it, time of its own or further calls."""

    part: int
    content: list[float | Call] = field(default_factory=list)


class Recording:
    """Marks of a step on a clock where each mark takes time before it is stamped and after."""

    def __init__(self, before_ns: float, after_ns: float) -> None:
        self.before_ns, self.after_ns = before_ns, after_ns
        self.now_ns = 0.0
        self.offsets: list[float] = []
        self.codes = [OTHER]
        self.truth = [0.0] * PARTS

    def mark(self, code: int) -> None:
        self.now_ns += self.before_ns
        self.offsets.append(self.now_ns)
        self.codes.append(code)
        self.now_ns += self.after_ns

    def run(self, part: int, content: list[float | Call], *, calibrates: bool = False) -> None:
        for item in content:
            if isinstance(item, Call):
                outside = self.codes[-1] & PART | LEFT
                self.mark(item.part)
                self.run(item.part, item.content)
                self.mark(outside)
                if calibrates:
                    self.mark(EMPTY)
                    self.mark(outside)
            else:
                self.now_ns += item
                self.truth[part] += item


spans = st.floats(0, 1e6)
leaves = st.builds(Call, st.integers(0, PARTS - 1), st.lists(spans, max_size=2))
calls = st.builds(Call, st.integers(0, PARTS - 1), st.lists(spans | leaves, max_size=5))


@given(st.lists(spans | calls, max_size=6), st.floats(0, 50), st.floats(0, 50))
def test_time_of_the_model_is_recovered(content: list[float | Call], before_ns: float, after_ns: float) -> None:
    """Whatever calls are nested and repeated, each part gets its own time, without that of the marks."""
    step = Recording(before_ns, after_ns)
    calibrated: list[float | Call] = [*content, Call(0, [1.0]), 1.0]
    step.run(OTHER, calibrated, calibrates=True)
    times = partition(step.offsets, step.codes, step.now_ns, PARTS)
    edge_ns = before_ns + after_ns  # before the first mark and after the last nothing is known to subtract
    assert times == pytest.approx(step.truth, abs=edge_ns + 1e-3)


@given(st.lists(spans | calls, max_size=6))
def test_parts_add_up_to_the_step(content: list[float | Call]) -> None:
    """Where marks take nothing, the parts add up to the step exactly: no time is lost or doubled."""
    step = Recording(0, 0)
    step.run(OTHER, content)
    assert sum(partition(step.offsets, step.codes, step.now_ns, PARTS)) == pytest.approx(step.now_ns, abs=1e-3)


def test_gap_after_the_last_call_is_of_the_tail() -> None:
    """What follows the last timed call until the end belongs to the part that the caller names."""
    assert partition([10, 30], [OTHER, 0, OTHER | LEFT], 100, PARTS, tail=2) == [20, 0, 70, 10]
    assert partition([10, 30], [OTHER, 0, OTHER | LEFT], 100, PARTS) == [20, 0, 0, 80]


def test_time_is_never_negative() -> None:
    """A call shorter than what its marks usually take counts as nothing."""
    codes = [OTHER, 0, OTHER | LEFT, EMPTY, OTHER | LEFT, 1, OTHER | LEFT]
    times = partition([0, 2, 10, 20, 30, 35], codes, 35, PARTS)
    assert min(times) == 0
