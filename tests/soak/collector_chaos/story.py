"""One run: clients, a bad network, and a collector and a ClickHouse that are killed, paused and short of disk."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conformance.running import free_port
from tests.soak.collector_chaos import clients
from tests.soak.collector_chaos.ledger import Account, check_rollups, settle
from tests.soak.collector_chaos.place import Collector, Disk, Endpoint
from tests.support.collector import wait_until

PROXY = Path(__file__).parent / "proxy.py"
_KILL, _PAUSE, _KILL_CLICKHOUSE, _FULL_DISK = "collector killed", "ClickHouse paused", "ClickHouse killed", "disk full"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything; times in seconds."""

    spans: int
    clients: int
    rate: float
    """Spans a second that one client makes at most."""
    calm: tuple[float, float]
    """Time between two troubles, drawn between these."""
    trouble: tuple[float, float]
    """How long ClickHouse is paused or the disk full."""
    bytes_to_trouble: float
    """Bytes that a connection carries on average until the network spoils it."""
    longest_stall: float
    """How long the network may keep what it got."""
    disk_bytes: int
    rounds: int
    """Of six troubles each; after them the clients finish in peace, apart from the network."""
    seed: int
    timeout: float


@dataclass(slots=True)
class Outcome:
    """What happened and what came of it."""

    troubles: Counter[str] = field(default_factory=Counter)
    network: dict[str, int] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    exits: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    peak_bytes: int = 0


def run(plan: Plan, folder: Path, modules: Path | None, say: Callable[[str], None]) -> Outcome:
    """Run the plan and check every span.

    Raises:
        AssertionError: a span is missing, doubled or changed, or a rollup is not what the table says.
    """
    outcome, rng = Outcome(), random.Random(plan.seed)
    with ExitStack() as parts:
        disk = Disk(folder / "disk", plan.disk_bytes)
        parts.callback(disk.close)
        endpoint = Endpoint(folder / "clickhouse")
        parts.callback(lambda: endpoint.kill9())
        endpoint.start()
        collector = Collector(
            disk.folder / "data", endpoint.url, folder / "collector.log",
            "--batch-seconds", "0.5", "--stop-seconds", "120",
        )  # fmt: skip
        parts.callback(lambda: collector.process and collector.process.kill())
        collector.start()
        assert collector.wait_ready(), (folder / "collector.log").read_text()[-3000:]
        network, endpoints = start_network(plan, collector, folder)
        parts.callback(network.kill)
        begin = time.monotonic()
        running = start_clients(plan, endpoints, folder, modules)
        parts.callback(lambda: [client.process.kill() for client in running])
        for trouble in troubles(plan, rng, disk.can_be_filled):
            live(plan, rng, collector, running, say, begin)
            if all(client.process.poll() is not None for client in running):
                break
            assert time.monotonic() - begin < plan.timeout, f"not done after {plan.timeout:g} s"
            if trouble is not None:
                make(trouble, plan, rng, collector, endpoint, disk)
                outcome.troubles[trouble] += 1
        reports = {client.name: client.result() for client in running}
        outcome.seconds = time.monotonic() - begin
        network.send_signal(signal.SIGTERM)
        network.wait(30)
        outcome.network = json.loads((folder / "network.json").read_text())
        finish(collector, outcome)
        for name, report in reports.items():
            outcome.accounts[name] = settle(endpoint.rows, name, report)
        check_rollups(endpoint.rows)
        assert endpoint.rows("select count() from tailspan.rejects") == [["0"]]
    return outcome


def start_network(plan: Plan, collector: Collector, folder: Path) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    """Start the proxy; return it and where clients connect."""
    ports = {"grpc": free_port(), "http": free_port()}
    ways = [f"{ports['grpc']}:{collector.grpc_port}", f"{ports['http']}:{collector.http_port}"]
    numbers = (plan.seed, plan.bytes_to_trouble, plan.longest_stall)
    command = [sys.executable, str(PROXY), str(folder / "network.json"), *map(str, numbers)]
    with (folder / "network.log").open("wb") as log:
        process = subprocess.Popen([*command, *ways], stdout=log, stderr=log)
    ready = folder / "network.ready"
    assert wait_until(ready.exists, bool, 20), (folder / "network.log").read_text()
    return process, {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}


def start_clients(plan: Plan, endpoints: dict[str, str], folder: Path, modules: Path | None) -> list[clients.Client]:
    """Start the clients, each with its share of the spans."""
    kinds = [kind for kind in clients.KINDS if kind.sdk != "node" or modules is not None]
    return [
        clients.start(
            kinds[number % len(kinds)], number, plan.spans // plan.clients, plan.rate, endpoints, folder, modules
        )
        for number in range(plan.clients)
    ]


def troubles(plan: Plan, rng: random.Random, can_fill: bool) -> Iterator[str | None]:
    """Yield troubles: mostly kills of the collector, and each kind in every round; then None for ever."""
    for _ in range(plan.rounds):
        round_ = [_KILL, _KILL, _KILL, _PAUSE, _KILL_CLICKHOUSE] + [_FULL_DISK] * can_fill
        rng.shuffle(round_)
        yield from round_
    while True:
        yield None


def live(
    plan: Plan, rng: random.Random, collector: Collector, running: list[clients.Client], say: Callable[[str], None],
    begin: float,
) -> None:  # fmt: skip
    """Let things go well for a while."""
    until = time.monotonic() + rng.uniform(*plan.calm)
    while time.monotonic() < until and any(client.process.poll() is None for client in running):
        collector.supervise()
        time.sleep(0.05)
    done = sum(client.look() for client in running)
    say(f"{time.monotonic() - begin:6.1f} s  {done:>9,} of {plan.spans:,} spans exported or given up")


def make(trouble: str, plan: Plan, rng: random.Random, collector: Collector, endpoint: Endpoint, disk: Disk) -> None:
    """Make one trouble and mend it."""
    length = rng.uniform(*plan.trouble)
    if trouble == _KILL:
        collector.kill9()
        collector.wait_ready(10)
    elif trouble == _PAUSE:
        endpoint.pause()
        time.sleep(length)
        endpoint.go_on()
    elif trouble == _KILL_CLICKHOUSE:
        endpoint.kill9()
        time.sleep(length / 2)
        endpoint.start()
    else:
        disk.fill()
        time.sleep(length / 2)
        if rng.random() < 0.5:
            collector.kill9()
        time.sleep(length / 2)
        disk.free()
        collector.wait_ready(10)


def finish(collector: Collector, outcome: Outcome) -> None:
    """Let the collector store the rest, and end it as an operator would."""
    assert collector.wait_ready(), "the collector does not start any more"
    left = wait_until(lambda: collector.metric("unread_bytes"), lambda size: size == 0, 180)
    assert left == 0, f"{left:.0f} bytes stay in the spool"
    collector.supervise()
    outcome.peak_bytes = collector.peak_bytes
    assert collector.stop() == 0
    outcome.exits = dict(collector.exits)


def table(plan: Plan, outcome: Outcome) -> str:
    """Return what happened, for people."""
    heads = ("made", "acknowledged", "given up", "of these stored", "in the table")
    lines = [f"{'client':<16} {heads[0]:>9} {heads[1]:>12} {heads[2]:>9} {heads[3]:>15} {heads[4]:>12}"]
    totals = [0] * 5
    for name, account in outcome.accounts.items():
        values = (account.made, account.acknowledged, account.failed, account.failed_but_stored, account.stored)
        totals = [a + b for a, b in zip(totals, values, strict=True)]
        lines.append(_line(name, values))
    lines.append(_line("all", totals))
    lines.append(f"troubles: {_counts(outcome.troubles)}")
    lines.append(f"network:  {_counts(outcome.network)}")
    if outcome.exits:
        lines.append(f"the collector gave up by itself: {_counts(outcome.exits)}")
    lines.append(
        f"{outcome.seconds:.0f} s, {plan.spans / outcome.seconds:,.0f} spans/s, seed {plan.seed}, largest memory of a "
        f"collector {outcome.peak_bytes / 2**20:.0f} MiB"
    )
    return "\n".join(lines)


def _line(name: str, values: Any) -> str:
    made, acknowledged, failed, failed_but_stored, stored = values
    return f"{name:<16} {made:>9,} {acknowledged:>12,} {failed:>9,} {failed_but_stored:>15,} {stored:>12,}"


def _counts(counts: Any) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
