"""What is predicted for a made-up engine, against the same engine run again with the change."""

from dataclasses import replace

import numpy as np
import pytest

from tailspan.errors import UserError
from tailspan_queries.client import Client
from tailspan_queries.times import Window
from tailspan_queries.whatif import named, what_if
from tailspan_queries.whatif_records import Base, Change
from tailspan_queries.whatif_view import cautions
from tests.queries.whatif.engine import PLAIN, WINDOW, Ran, e2e_ms, real
from tests.queries.whatif_traffic import Settings


def test_replay_of_what_was_recorded(client: Client, ran: Ran) -> None:
    """The measured numbers are those of the requests, and the replay comes within a few per cent of them."""
    found = what_if(client, WINDOW)
    times = e2e_ms(ran[0])
    assert found.requests == len(times) == PLAIN.requests - 8
    p50, p99 = found.measure("e2e P50"), found.measure("e2e P99")
    assert p50.measured_ns == pytest.approx(np.quantile(times, 0.5) * 1e6, rel=1e-4)
    assert p99.measured_ns == pytest.approx(np.quantile(times, 0.99) * 1e6, rel=1e-4)
    ttft = [item.first_ns - item.start_ns for item in ran[0] if not item.aborted and item.output]
    assert found.measure("TTFT P50").measured_ns == pytest.approx(np.median(ttft), rel=1e-4)
    assert found.error_ratio < 0.08
    (model,) = found.models
    assert (model.limits.max_batch, model.limits.max_tokens) == (PLAIN.max_batch, PLAIN.max_tokens)
    assert model.cost.base == pytest.approx(8e6, rel=0.1)
    assert model.cost.token == pytest.approx(0.03e6, rel=0.1)
    assert not cautions(found)


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        (replace(PLAIN, decode=1.3), Change(speedups=(("decode", 1.3),))),
        (replace(PLAIN, prefill=1.5), Change(speedups=(("prefill", 1.5),))),
        (replace(PLAIN, max_batch=4), Change(batch=4)),
        (replace(PLAIN, max_batch=12), Change(batch=12)),
        (replace(PLAIN, gap_ms=PLAIN.gap_ms / 1.3), Change(arrivals=1.3)),
        (replace(PLAIN, output_length=0.5), Change(output_tokens=0.5)),
        (replace(PLAIN, output_length=1.5), Change(output_tokens=1.5)),
        (replace(PLAIN, max_tokens=64), Change(step_tokens=64)),
        (
            replace(PLAIN, max_batch=12, gap_ms=PLAIN.gap_ms / 1.5, output_length=0.5, decode=1.2),
            Change(speedups=(("decode", 1.2),), batch=12, arrivals=1.5, output_tokens=0.5),
        ),
    ],
    ids=["decode", "prefill", "batch-4", "batch-12", "arrivals", "shorter", "longer", "tokens", "several"],
)
def test_prediction_against_the_engine_itself(client: Client, settings: Settings, change: Change) -> None:
    """What is predicted is what the engine does when it is run with the change, which moves its latency a lot."""
    found = what_if(client, WINDOW, change=change, seeds=3)
    p50, p99 = real(settings)
    was = real(PLAIN)
    assert found.measure("e2e P50").predicted_ns == pytest.approx(p50 * 1e6, rel=0.12)
    assert found.measure("e2e P99").predicted_ns == pytest.approx(p99 * 1e6, rel=0.15)
    assert abs(p50 / was[0] - 1) > 0.02


def test_amdahl(client: Client, ran: Ran) -> None:
    """Beside a prediction stands what each request's own stage would save, and the queue makes the gain larger."""
    found = what_if(client, WINDOW, change=Change(speedups=(("decode", 1.3),)))
    done = [item for item in ran[0] if not item.aborted]
    bound = [item.last_ns - item.start_ns + 200_000 - (item.last_ns - item.first_ns) * (1 - 1 / 1.3) for item in done]
    tail = found.measure("e2e P99")
    assert tail.amdahl_ns == pytest.approx(np.quantile(bound, 0.99), rel=1e-4)
    assert found.measure("e2e P50").amdahl_ns == pytest.approx(np.quantile(bound, 0.5), rel=1e-4)
    assert tail.predicted_ns is not None
    assert tail.amdahl_ns is not None
    assert tail.low_ns is not None
    assert tail.high_ns is not None
    assert tail.predicted_ns < tail.amdahl_ns
    assert tail.low_ns <= tail.predicted_ns <= tail.high_ns
    assert found.measure("queue P99").amdahl_ns == found.measure("queue P99").measured_ns
    assert what_if(client, WINDOW, change=Change(arrivals=2.0), seeds=1).measure("e2e P99").amdahl_ns is None


def test_stages_beside_the_engine(client: Client) -> None:
    """Faster tokenizing brings requests earlier, faster responding is subtracted, a shorter queue is divided."""
    plain = what_if(client, WINDOW, seeds=2)
    for stage, most_ns in (("tokenize", 2e6), ("respond", 0.2e6)):
        found = what_if(client, WINDOW, change=Change(speedups=((stage, 1e9),)), seeds=2)
        saved = (plain.measure("e2e mean").model_ns or 0) - (found.measure("e2e mean").predicted_ns or 0)
        # Who comes earlier may join an earlier step, or wait longer.
        assert 0 < saved < 2 * most_ns
    assert saved == pytest.approx(0.2e6)
    halved = what_if(client, WINDOW, change=Change(speedups=(("queue", 2.0),)), seeds=2)
    assert halved.measure("queue P99").predicted_ns == pytest.approx((plain.measure("queue P99").model_ns or 0) / 2)


def test_same_seed_same_answer(client: Client) -> None:
    """The answer is the same every time, and without a change it is the replay."""
    change = Change(prompt_cache=0.3)
    assert (
        what_if(client, WINDOW, change=change, seeds=2).measures
        == what_if(client, WINDOW, change=change, seeds=2).measures
    )
    plain = what_if(client, WINDOW, seeds=2).measure("e2e P99")
    assert plain.predicted_ns == plain.model_ns


def test_overload_is_said(client: Client) -> None:
    """A change that the engine cannot keep up with is called so."""
    assert any("cannot keep up" in note for note in what_if(client, WINDOW, change=Change(arrivals=4.0), seeds=1).notes)
    assert not any(
        "cannot keep up" in note for note in what_if(client, WINDOW, change=Change(arrivals=0.5), seeds=1).notes
    )


def test_changes_within_the_error_are_said(client: Client) -> None:
    """A change smaller than what the replay is off by is called so, a large one is not."""
    small, large = (
        what_if(client, WINDOW, change=Change(speedups=((stage, 1.3),)), seeds=2) for stage in ("respond", "decode")
    )
    assert any("e2e P50" in line and "may be nothing" in line for line in cautions(small))
    assert not any("may be nothing" in line for line in cautions(large))


def test_notes_of_many_engines() -> None:
    """A note names one or two engines, counts more of them, and says nothing where there is only one."""
    assert named(["a"], 1) == ""
    assert named(["a", "b"], 5) == "a, b: "
    assert named(["a", "b", "c"], 5) == "3 of 5 engines: "


def test_window_in_the_middle(client: Client, ran: Ran) -> None:
    """Requests that were in the engine when the window began are replayed and not counted; of many the latest count."""
    starts = sorted(item.start_ns for item in ran[0] if not item.aborted)
    middle = Window(round(starts[150]) - 1000, WINDOW.until_ns)
    found = what_if(client, middle, seeds=2)
    assert found.requests == len(starts) - 150
    (model,) = found.models
    assert 0 < len(model.requests) - found.requests < 50
    assert found.error_ratio < 0.15
    latest = what_if(client, WINDOW, limit=100, seeds=1)
    # Some of the latest were aborted in the queue.
    assert 95 <= latest.requests <= 100
    assert any("only the latest" in note for note in latest.notes)


def test_far_off_is_refused(client: Client) -> None:
    """With limits that the engine did not have the replay is far off, and nothing is predicted unless forced."""
    with pytest.raises(UserError, match="too far"):
        what_if(client, WINDOW, base=Base(max_batch=1), seeds=1)
    found = what_if(client, WINDOW, base=Base(max_batch=1), seeds=1, force=True)
    assert found.error_ratio > 0.5
    assert any("with care" in line for line in cautions(found))
