"""Mutated requests by the thousand: no crash, no hang, no growth, and every neighbour and every mutant accounted for.

The long run takes its size from TAILSPAN_FUZZ_REQUESTS (1,000,000) and TAILSPAN_FUZZ_SEED.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.conformance.running import MIB, OtlpCollector
from tests.conformance.signals import SIGNALS, Signal
from tests.soak.collector_fuzz.account import Found, settle
from tests.soak.collector_fuzz.judge import Verdict, judge
from tests.soak.collector_fuzz.run import Tally, run
from tests.soak.collector_fuzz.templates import template

SHARE = 0.8
"""Of the requests that are mutants."""


def describe(tally: Tally, found: Found, seed: int, seconds: float) -> str:
    """Return what happened, for people."""
    memory = [size / MIB for _, size in tally.memory]
    lines = [
        f"{tally.sent:,} requests, {sum(tally.neighbours.values()):,} of them valid, in {tally.seconds:.1f} s "
        f"({tally.sent / tally.seconds:,.0f}/s), all stored after {seconds:.1f} s, seed {seed}",
        f"answers: {', '.join(f'{name} {count:,}' for name, count in sorted(tally.answers.items()))}",
        f"acknowledged mutants in protobuf: {len(tally.verdicts):,}, of which {found.rejects:,} are rejects; "
        f"{found.lenient:,} that google.protobuf cannot decode were stored by ClickHouse",
        f"memory: {memory[0]:.0f} MiB at first, {max(memory):.0f} MiB at most, {memory[-1]:.0f} MiB in the end",
    ]
    return "\n".join(lines)


def test_a_few_thousand_mutants(tmp_path: Path) -> None:
    """5,000 requests, four of five mutated; see the long test."""
    begin = time.monotonic()
    with OtlpCollector(tmp_path / "data") as collector:
        tally = run(collector, 4000, SHARE, seed=11)
        found = settle(collector, tally, 60)
    print(describe(tally, found, 11, time.monotonic() - begin))
    assert found.rejects > 0


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_million_mutants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1,000,000 mutated requests: memory in the second half is not above that of the first, and nothing is lost."""
    mutants = int(os.environ.get("TAILSPAN_FUZZ_REQUESTS", 1_000_000))
    seed = int(os.environ.get("TAILSPAN_FUZZ_SEED", time.time_ns() % 10**6))
    begin = time.monotonic()
    with capsys.disabled():
        print(f"\nTAILSPAN_FUZZ_SEED={seed}")
        # Every batch has something that fails, and costs some inserts more: so batches are large.
        with OtlpCollector(tmp_path / "data", "--batch-seconds", "3") as collector:
            tally = run(collector, mutants, SHARE, seed, lambda line: print(line, flush=True))
            found = settle(collector, tally, 3600)
        print(describe(tally, found, seed, time.monotonic() - begin))
    check_memory(tally)


def check_memory(tally: Tally) -> None:
    """Memory does not grow: the second half needs no more than the first, but for noise."""
    half = len(tally.memory) // 2
    first, second = (max(size for _, size in part) for part in (tally.memory[:half], tally.memory[half:]))
    assert second < first * 1.2 + 64 * MIB, f"{first / MIB:.0f} MiB at most in the first half, {second / MIB:.0f} after"


@pytest.mark.parametrize("signal", SIGNALS, ids=str)
def test_the_judge_knows_valid_requests(signal: Signal) -> None:
    """A template is valid, one byte less is not, an unknown field makes it unclear, text that is no UTF-8 does not."""
    body = template(signal, random.Random(1)).body
    assert judge(signal, body)[0] is Verdict.VALID
    assert judge(signal, body[:-1])[0] is Verdict.INVALID
    assert judge(signal, body + b"\xf8\x01\x01")[0] is Verdict.UNCLEAR
    assert judge(signal, body.replace(b"fuzz", b"\xff\xff\xff\xff"))[0] is Verdict.VALID
