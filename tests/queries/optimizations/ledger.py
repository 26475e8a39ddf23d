"""Four runs of a made-up server, and `tailspan optimizations` against a collector that holds them."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import pytest

from tailspan.cli import main
from tailspan_queries import optimizations_store
from tailspan_queries.client import Client
from tailspan_queries.times import Window, iso
from tests.queries import traffic
from tests.queries.ledger_traffic import mean_ns
from tests.support.collector import RunningCollector, wait_until

MINUTE = traffic.MINUTE_NS
WINDOWS = [Window(traffic.BEGIN_NS + n * 4 * MINUTE, traffic.BEGIN_NS + (n * 4 + 3) * MINUTE) for n in range(4)]
"""Neither; the queue tuned; both tuned; only decode tuned."""
NAMES = ("base", "queue", "both", "decode")
EMPTY = Window(traffic.BEGIN_NS - 9 * MINUTE, traffic.BEGIN_NS - 8 * MINUTE)
Tuned = dict[str, list[traffic.Request]]


@dataclass(frozen=True, slots=True)
class Done:
    """What a command did."""

    returncode: int
    stdout: str
    stderr: str


def environment(ledger: RunningCollector) -> dict[str, str]:
    """Return the variables that name the collector, and the width of a terminal."""
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": ledger.otlp_endpoint,
        "TAILSPAN_CLICKHOUSE_URL": ledger.url,
        "COLUMNS": "100",
    }


def run(ledger: RunningCollector, *words: str) -> Done:
    """Run `tailspan optimizations` against the collector, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in environment(ledger).items():
            patch.setenv(name, value)
        code = main(["optimizations", *words])
    return Done(code, out.getvalue(), err.getvalue())


def text_of(window: Window) -> str:
    """Return a window as an option takes it."""
    return f"{iso(window.since_ns)}..{iso(window.until_ns)}"


def add(ledger: RunningCollector, reader: Client, stage: str, name: str, before: int, after: int, *more: str) -> str:
    """Record an entry by the command; return its id when ClickHouse shows it."""
    windows = ("--before", text_of(WINDOWS[before]), "--after", text_of(WINDOWS[after]))
    done = run(ledger, "add", "--stage", stage, "--name", name, *windows, *more)
    assert done.returncode == 0, done.stderr
    digits = done.stdout.split()[1]
    assert done.stdout == f"recorded {digits} {name}\n"
    return wait_until(lambda: ids(reader, digits), bool)[0]


def ids(reader: Client, digits: str) -> list[str]:
    """Return the ids of the ledger that begin so."""
    return [item.id for item in optimizations_store.read(reader) if item.id.startswith(digits)]


def kept_weights(ledger: RunningCollector, requests: list[traffic.Request]) -> list[int]:
    """Return the whole weights by which ClickHouse repeats requests in quantiles."""
    rows = ledger.query("select lower(hex(trace_id)), whole_weight from tailspan.requests")
    weights = dict(rows)
    return [weights[item.trace_id.hex()] for item in requests]


def check_gain(effect: dict[str, Any], before: list[traffic.Request], after: list[traffic.Request]) -> float:
    """Compare a measured line with NumPy; return the gain."""
    first, second = mean_ns(before, effect["place"]), mean_ns(after, effect["place"])
    assert effect["origin"] == "measured"
    assert (effect["before_ns"], effect["after_ns"]) == (pytest.approx(first), pytest.approx(second))
    assert effect["improvement_ratio"] == pytest.approx((first - second) / first)
    assert effect["gain_low_ns"] == effect["gain_high_ns"] == pytest.approx(first - second)
    assert effect["interval_low_ns"] < first - second < effect["interval_high_ns"]
    assert (effect["requests_before"], effect["requests_after"]) == (len(before), len(after))
    assert effect["e2e_before_ns"] == pytest.approx(mean_ns(before, "request"))
    return first - second
