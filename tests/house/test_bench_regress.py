"""The benchmark of false alarms: its engine serves in order, and without the traces it says so."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import bench_regress
from benchmarks.bench_regress import DATA, HOUR_S, STRETCH_S, TRACES, Trace, hour, load, risen, run, sample, serve


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Two thousand requests in twenty minutes."""
    random = np.random.default_rng(1)
    tokens = random.integers(1, 400, (2, 2000))
    return Trace(np.sort(random.uniform(0, 1200, 2000)), tokens[0], tokens[1])


def test_the_engine_serves_in_order_and_no_more_than_it_holds(trace: Trace) -> None:
    """Requests begin in the order of arrival, and at no begin do more run than there are slots."""
    walls = serve(trace, 3, np.random.default_rng(2))
    begins = trace.arrivals + walls["queue"] / 1e9
    ends = begins + (walls["prefill"] + walls["decode"]) / 1e9
    noise_s = 0.05
    assert (np.diff(begins) > -noise_s).all()
    running = [(begins <= moment).sum() - (ends <= moment + noise_s).sum() for moment in begins]
    assert max(running) <= 3
    assert walls["queue"].max() > 1e9


def test_an_hour_is_made_of_stretches_of_the_trace(trace: Trace) -> None:
    """Twelve stretches of five minutes follow one another, with lengths that the trace has."""
    made = hour(trace, np.random.default_rng(3))
    assert (np.diff(made.arrivals) >= 0).all()
    assert made.arrivals[-1] < HOUR_S
    assert len(made.arrivals) == pytest.approx(2000 * HOUR_S / 1200, rel=0.1)
    assert set(np.bincount((made.arrivals / STRETCH_S).astype(int)) > 0) == {True}
    assert set(made.outputs) <= set(trace.outputs)


def test_a_class_that_waits_longer_is_found_and_no_other(trace: Trace) -> None:
    """Of the same hours the class is named where it waits four times as long, and none where it does not."""
    random = np.random.default_rng(4)
    sides = sample(trace, 20, random, 0), sample(trace, 20, random, 1)
    assert risen(*sides, random) == (True, False)


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_is_read_in_order(name: str) -> None:
    """Arrivals begin at 0 and do not go back; every request has a prompt."""
    if not (DATA / name).exists():
        pytest.skip(f"{DATA / name} is not there")
    found = load(DATA / name)
    assert found.arrivals[0] == 0
    assert (np.diff(found.arrivals) >= 0).all()
    assert len(found.arrivals) == len(found.prompts) == len(found.outputs) > 8000
    assert found.prompts.min() >= 0


def test_without_the_traces_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each trace that is not there is told, and there are no results."""
    monkeypatch.setattr(bench_regress, "DATA", tmp_path)
    assert run(1) == []
    assert capsys.readouterr().err.count("is not there; left out") == len(TRACES)
