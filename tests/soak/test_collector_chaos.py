"""Real SDK clients, a bad network, kill -9, a ClickHouse that stops, a full disk: what was acknowledged is there once.

The long run takes its size from the environment: TAILSPAN_CHAOS_SPANS (2,000,000), TAILSPAN_CHAOS_CLIENTS (8),
TAILSPAN_CHAOS_RATE (600 spans a second of each client at most), TAILSPAN_CHAOS_SEED, TAILSPAN_CHAOS_SECONDS (3,000, the
longest it may take).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.soak.collector_chaos import story
from tests.soak.collector_chaos.clients import NodeMissingError, node_modules

MIB = 1024 * 1024


def test_a_little_chaos(tmp_path: Path) -> None:
    """20,000 spans of two clients survive 3 kills, a pause, a killed ClickHouse and a full disk; see the long test."""
    plan = story.Plan(
        spans=20_000, clients=2, rate=1000, calm=(0.2, 0.6), trouble=(0.5, 1.0), bytes_to_trouble=150_000,
        longest_stall=1.5, disk_bytes=256 * MIB, rounds=1, seed=7, timeout=90,
    )  # fmt: skip
    outcome = story.run(plan, tmp_path, None, lambda _: None)
    print(story.table(plan, outcome))
    assert outcome.troubles["collector killed"] >= 3
    assert sum(account.acknowledged for account in outcome.accounts.values()) > 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_chaos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """2,000,000 spans of 8 SDK clients, two in Node: count and checksums equal what was acknowledged, none twice."""
    plan = story.Plan(
        spans=int(os.environ.get("TAILSPAN_CHAOS_SPANS", 2_000_000)),
        clients=int(os.environ.get("TAILSPAN_CHAOS_CLIENTS", 8)),
        rate=float(os.environ.get("TAILSPAN_CHAOS_RATE", 600)),
        calm=(2, 5),
        trouble=(1, 5),
        bytes_to_trouble=1_500_000,
        longest_stall=12,
        disk_bytes=1024 * MIB,
        rounds=10_000,
        seed=int(os.environ.get("TAILSPAN_CHAOS_SEED", time.time_ns() % 10**6)),
        timeout=float(os.environ.get("TAILSPAN_CHAOS_SECONDS", 3000)),
    )
    with capsys.disabled():
        try:
            modules = node_modules()
        except NodeMissingError as error:
            modules = None
            print(f"\nwithout the SDK for Node: {error}")
        print(f"\nTAILSPAN_CHAOS_SEED={plan.seed}")
        outcome = story.run(plan, tmp_path, modules, lambda line: print(line, flush=True))
        print(story.table(plan, outcome))
    assert sum(account.made for account in outcome.accounts.values()) == plan.spans // plan.clients * plan.clients
    assert outcome.troubles["collector killed"] >= plan.spans // 100_000
