"""What tracing costs vLLM: the real engine, all requests traced against none, in turn in one process.

As in `bench_overhead`: a row's value is the upper bound of the 95 % interval of the change, the estimate and the
interval stand where others have their peer. The environment is that of `make test-vllm`, made if it is missing.
Units: percent of the untraced value; positive is worse.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.bench_overhead import HOOK_ROUNDS, comparison_rows, row
from benchmarks.engine_rounds import Pair, Round
from benchmarks.pairs import median_interval
from benchmarks.result import Result
from benchmarks.sink import sink
from tailspan_queries.demo.model import prepare_model

CHECKOUT = Path(__file__).parents[1]
SECONDS = 720.0
"""With a third of it the interval is 1 % wide to each side, on two cores."""


def run() -> list[Result]:
    """Run the comparison in vLLM's environment."""
    subprocess.run([sys.executable, str(CHECKOUT / "tests/vllm/environment.py"), str(CHECKOUT)], check=True)
    python = str(CHECKOUT / ".venv-vllm/bin/python")
    with sink() as endpoint:
        command = [python, "-m", "benchmarks.vllm_rounds", str(prepare_model()), endpoint, str(SECONDS)]
        done = subprocess.run([*command, str(HOOK_ROUNDS)], cwd=CHECKOUT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    found = json.loads(done.stdout.strip().splitlines()[-1])
    pairs = [Pair(_round(pair["untraced"]), _round(pair["traced"])) for pair in found["pairs"]]
    hooks = row("overhead.vllm.hooks", median_interval(found["hooks"]), HOOK_ROUNDS)
    return [*comparison_rows("overhead.vllm", pairs), hooks]


def _round(seen: dict[str, list[float]]) -> Round:
    return Round(seen["wall_s"], seen["cpu_s"], tuple(seen["gaps_s"]))  # type: ignore[arg-type]
