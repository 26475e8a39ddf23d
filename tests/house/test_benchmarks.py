"""The benchmark runner: it finds files by name and judges each result by its goal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmark command in the checkout."""
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)


def test_every_benchmark_file_is_offered(root: Path) -> None:
    """A file `bench_NAME.py` is all that it takes to be listed."""
    names = [path.stem.removeprefix("bench_") for path in (root / "benchmarks").glob("bench_*.py")]
    text = run(root, "--help").stdout
    assert names
    assert all(name in text for name in names)


def test_an_unknown_benchmark_is_one_line(root: Path) -> None:
    """A wrong name ends with code 2 and lists the right ones."""
    done = run(root, "--only", "speed")
    assert done.returncode == 2
    assert "no benchmark 'speed'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("value", "goal", "higher", "holds"),
    [(1.0, 1.0, "False", True), (1.1, 1.0, "False", False), (19.0, 20.0, "True", False), (20.0, 20.0, "True", True)],
)
def test_a_result_is_judged_by_its_goal(root: Path, value: float, goal: float, higher: str, holds: bool) -> None:
    """A goal is a bound from above, or from below where more is better, and meeting it exactly holds."""
    code = (
        "from benchmarks.result import Result; "
        f"print(Result('x', {value}, 'us', {goal}, {higher}, 'peer', 2.0).to_json())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {
        "name": "x",
        "value": value,
        "unit": "us",
        "goal": goal,
        "peer": "peer",
        "peer_value": 2.0,
        "holds": holds,
    }


def test_a_result_that_is_no_number_is_refused(root: Path) -> None:
    """NaN compares as false with every goal and must not pass for a measurement."""
    code = "from benchmarks.result import Result; Result('x', float('nan'), 'us', 1.0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert "not a measurement" in done.stderr
