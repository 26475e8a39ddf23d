"""`tailspan doctor --collector`: is a running collector well, and if not, what to do.

In: `/readyz` and `/metrics` of its admin port, nothing else. Out: findings in the order in which data flows; counts are
since the start of the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tailspan.doctor import Finding
from tailspan.errors import UserError
from tailspan_collector.scrape import Samples, fetch, reason
from tailspan_collector.settings import DEFAULT_DATA, MIB

DEFAULT_URL = "http://127.0.0.1:13133"
_LONG_LAG_S = 60.0
_LEAST_DISK_BYTES = 1024 * MIB
_ANSWERED_WELL = frozenset({"OK", "200", "0"})
_INSERTED_WELL = frozenset({"stored"})


def find_url(data: Path | None = None) -> str:
    """Return the admin address of the collector that runs on a data folder, else the default one."""
    folder = data or Path(os.environ.get("TAILSPAN_DATA") or DEFAULT_DATA)
    with contextlib.suppress(OSError, ValueError):
        endpoints = json.loads((folder / "endpoints.json").read_text(encoding="utf-8"))
        if isinstance(endpoints, dict) and isinstance(endpoints.get("admin"), str):
            return str(endpoints["admin"])
    return DEFAULT_URL


def examine_collector(url: str = "") -> Iterator[Finding]:
    """Yield the findings about the collector at `url`; empty = the one of the data folder.

    Raises:
        UserError: `url` is no http address.
    """
    base = (url or find_url()).rstrip("/")
    if urlsplit(base).scheme not in ("http", "https") or not urlsplit(base).hostname:
        raise UserError(f"{base!r} is no address of a collector", f"Give that of its admin port, e.g. {DEFAULT_URL}")
    try:
        status: dict[str, Any] = json.loads(fetch(f"{base}/readyz"))
        samples = Samples(fetch(f"{base}/metrics"))
    except (OSError, ValueError) as error:
        yield Finding(
            "collector", f"{base} does not answer ({reason(error)})",
            "Start it (`tailspan up` or `tailspan collector`), or give its admin address: "
            "`tailspan doctor --collector http://HOST:13133`",
        )  # fmt: skip
        return
    yield _process(base, status, samples)
    yield from _readiness(status)
    for spool in status.get("spools", ()):
        yield from _signal(spool, samples)
    yield _disk(status)
    yield _inserts(samples)
    for name in sorted(_destinations(samples)):
        yield _destination(name, samples)


def _process(base: str, status: dict[str, Any], samples: Samples) -> Finding:
    resident = samples.total("process_resident_memory_bytes")
    opened, most = samples.total("process_open_fds"), samples.total("process_max_fds")
    started = samples.total("process_start_time_seconds")
    up = f"up {_duration(time.time() - started)}, " if started else ""
    text = (
        f"{base} is alive: version {status.get('version', '?')}, {up}{_size(resident)} of memory, "
        f"{samples.total('process_cpu_seconds_total'):,.0f} s of CPU, {opened:,.0f} of {most:,.0f} files open"
    )
    if most and opened > 0.8 * most:
        return Finding("collector", text, "Raise the limit of open files (systemd: LimitNOFILE=)")
    return Finding("collector", text)


def _readiness(status: dict[str, Any]) -> Iterator[Finding]:
    spools = status.get("spools")
    if not spools:
        problems = "; ".join(status.get("problems", ())) or "no status"
        yield Finding("ready", problems, "Look at the collector's log; restart it if this stays")
        return
    closed = [spool for spool in spools if not spool["takes_data"]]
    if not closed:
        yield Finding("ready", "takes " + ", ".join(spool["signal"] for spool in spools))
    for spool in closed:
        yield Finding(
            "ready", f"takes no {spool['signal']}: {spool['reason']}",
            "Senders wait and send again. See that ClickHouse takes data and that the disk has room; "
            "then raise --max-spool-bytes or --max-spool-seconds",
        )  # fmt: skip
    clickhouse = status["clickhouse"]
    if clickhouse["answers"]:
        yield Finding("clickhouse", f"{clickhouse['endpoint']} answers")
    else:
        yield Finding(
            "clickhouse", f"{clickhouse['endpoint']} does not answer: {clickhouse['error']}",
            "Nothing is lost while the spool has room. Check the server, --clickhouse-url and the login",
        )  # fmt: skip


def _signal(spool: dict[str, Any], samples: Samples) -> Iterator[Finding]:
    signal = spool["signal"]
    lag, unread = samples.total("lag_seconds", signal=signal), samples.total("unread_bytes", signal=signal)
    limit = spool["limit_bytes"]
    resent = samples.total("resent_requests_total", signal=signal)
    text = (
        f"{samples.total('spooled_requests_total', signal=signal):,.0f} requests taken, "
        f"{samples.total('written_requests_total', signal=signal):,.0f} stored, {resent:,.0f} resent and recognised; "
        f"lag {_duration(lag)}, {_size(unread)}{f' of {_size(limit)}' if limit else ''} unread"
    )
    if lag > _LONG_LAG_S or (limit and unread > limit / 2):
        yield Finding(
            signal, text,
            "ClickHouse takes less than arrives: see the inserts below, then raise --inserts-in-flight or run more "
            "collectors",
        )  # fmt: skip
    else:
        yield Finding(signal, text)
    if refused := samples.total("refused_requests_total", signal=signal):
        yield Finding(
            signal, f"{_requests(refused)} refused with UNAVAILABLE, the spool was full or broken",
            "Senders that give up lose them. Raise --max-spool-bytes, or make ClickHouse faster",
        )  # fmt: skip
    if rejected := samples.total("rejected_requests_total", signal=signal):
        yield Finding(
            signal, f"{_requests(rejected)} could not be decoded and are in tailspan.rejects",
            "See `tailspan rejects` for who sent them and why, and replay them when that is mended",
        )  # fmt: skip
    if corrupt := samples.total("corrupt_bytes_total", signal=signal):
        yield Finding(
            signal, f"{_size(corrupt)} of the spool were no valid record and are kept aside",
            "A crash of the machine tears the last record, which nobody was told is safe; more than that is the disk: "
            "check it",
        )  # fmt: skip
    codes = samples.by("code", "requests_total", signal=signal)
    if bad := {code: count for code, count in codes.items() if code not in _ANSWERED_WELL and count}:
        shown = ", ".join(f"{code} {count:,.0f}" for code, count in sorted(bad.items()))
        yield Finding(signal, f"answers other than OK: {shown}")


def _disk(status: dict[str, Any]) -> Finding:
    free = status.get("disk_free_bytes", 0)
    wanted = sum(max(spool["limit_bytes"] - spool["unread_bytes"], 0) for spool in status.get("spools", ()))
    text = f"{_size(free)} free, the spool may take {_size(wanted)} more"
    if free < max(wanted, _LEAST_DISK_BYTES):
        return Finding("disk", text, "Give the data folder more room, or lower --max-spool-bytes")
    return Finding("disk", text)


def _inserts(samples: Samples) -> Finding:
    outcomes = samples.by("outcome", "inserts_total")
    good = sum(count for outcome, count in outcomes.items() if outcome in _INSERTED_WELL)
    bad = {outcome: count for outcome, count in outcomes.items() if outcome not in _INSERTED_WELL and count}
    seconds, count = samples.total("insert_seconds_sum"), samples.total("insert_seconds_count")
    mean = f", {seconds / count * 1e3:,.0f} ms in the mean" if count else ""
    if not bad:
        return Finding("inserts", f"{good:,.0f} without error{mean}")
    shown = ", ".join(f"{outcome} {number:,.0f}" for outcome, number in sorted(bad.items()))
    return Finding(
        "inserts", f"{good:,.0f} without error{mean}; errors: {shown}",
        "The collector's log has ClickHouse's reason. Those that pass are tried again, the others are isolated",
    )  # fmt: skip


def _destinations(samples: Samples) -> set[str]:
    names = (
        "forwarded_requests_total",
        "forward_failures_total",
        "forward_dropped_requests_total",
        "forward_lag_bytes",
    )
    return {destination for name in names for destination in samples.by("destination", name)}


def _destination(name: str, samples: Samples) -> Finding:
    failures = samples.total("forward_failures_total", destination=name)
    text = (
        f"{samples.total('forwarded_requests_total', destination=name):,.0f} requests sent, "
        f"{failures:,.0f} failed tries, {_size(samples.total('forward_lag_bytes', destination=name))} behind"
    )
    dropped = samples.by("reason", "forward_dropped_requests_total", destination=name)
    if lost := {reason: count for reason, count in dropped.items() if count}:
        shown = ", ".join(f"{count:,.0f} {reason}" for reason, count in sorted(lost.items()))
        return Finding(
            f"to {name}", f"{text}; not sent: {shown}",
            "They are in ClickHouse all the same. Mend the destination, or raise its most_behind_bytes and "
            "most_behind_seconds",
        )  # fmt: skip
    return Finding(f"to {name}", text)


def _requests(count: float) -> str:
    return f"{count:,.0f} request{'s' * (count != 1)}"


def _size(count: float) -> str:
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.3g} {unit}"


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
