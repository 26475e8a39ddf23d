"""`tailspan doctor`: is everything in place for traces to arrive, and if not, what to do.

`--collector [URL]` asks a running collector instead of looking at this host.
Exit code 0 when nothing is wrong, 2 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import platform
import shutil
import socket
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tailspan import engines, patch_config
from tailspan.agent import settings as agent_settings
from tailspan.engines.support import STATES
from tailspan.errors import UserError
from tailspan.patching import check, installed
from tailspan.recorder.reader import RingReader
from tailspan.settings import Settings
from tailspan.version import __version__

INDENT = 19
WIDTH = 120 - INDENT
"""Of the text beside mark and subject."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `remedy` is empty when all is well."""

    subject: str
    text: str
    remedy: str = ""


def doctor(argv: list[str]) -> int:
    """Print the findings; return 0, or 2 when one of them needs attention."""
    parser = argparse.ArgumentParser(prog="tailspan doctor", description="Check that traces can be recorded and sent.")
    parser.add_argument(
        "--collector", nargs="?", const="", metavar="URL",
        help="examine a running collector instead, by its admin port; without URL the one that runs on TAILSPAN_DATA "
        "or ./.tailspan, else http://127.0.0.1:13133",
    )  # fmt: skip
    url: str | None = parser.parse_args(argv).collector
    wrong = 0
    for finding in examine() if url is None else _examine_collector(url):
        wrong += bool(finding.remedy)
        mark = "!!" if finding.remedy else "ok"
        text = textwrap.indent(textwrap.fill(finding.text, WIDTH, break_long_words=False), " " * INDENT)
        print(f"{mark}  {finding.subject:<14} {text.lstrip()}")  # noqa: T201
        if finding.remedy:
            print(f"    {'':<14} -> {finding.remedy}")  # noqa: T201
    return 2 if wrong else 0


def _examine_collector(url: str) -> Iterator[Finding]:
    """Yield the findings about a running collector, whose package a worker's host need not have."""
    try:
        from tailspan_collector.doctor import examine_collector
    except ModuleNotFoundError as error:
        raise UserError(
            f"`tailspan doctor --collector` needs the package {error.name!r}, which is not installed",
            "Run: pip install 'tailspan[collector]'",
        ) from error
    yield from examine_collector(url)


def examine() -> Iterator[Finding]:
    """Yield the findings: program, engines, recorder, endpoint."""
    yield Finding("tailspan", f"{__version__} on Python {platform.python_version()}")
    try:
        settings = Settings.from_environment()
    except UserError as error:
        yield Finding("settings", error.what, error.remedy)
        return
    yield from _engines()
    try:
        agent_settings.check()
        yield from _by_configuration()
    except UserError as error:
        yield Finding("settings", error.what, error.remedy)
    yield _shared_memory(settings)
    yield from _workers(settings)
    yield _endpoint()


def _engines() -> Iterator[Finding]:
    for name, engine in engines.ENGINES.items():
        version = installed(engine.DISTRIBUTIONS)
        if version is None:
            yield Finding(name, "not installed")
            continue
        targets = engine.patcher().targets
        missing = check(targets)
        hooks = f"{len(targets) - len(missing)} of {len(targets)} hooks"
        text = f"{version} installed, tested with {engine.SUPPORTED}; {hooks}"
        if not missing:
            yield Finding(name, text)
        for target, reason in missing.items():
            yield Finding(
                name, f"{text}; no {target.module}:{target.path} ({reason})",
                f"Traces lack: {target.gives}. Use a tested version, or report this one",
            )  # fmt: skip
        for state in STATES:
            named = [supported.what for supported in engine.SUPPORT if supported.state == state]
            if named:
                yield Finding(name, f"{state}: {', '.join(named)}")


def _by_configuration() -> Iterator[Finding]:
    found = patch_config.patcher(os.environ)
    if found is None:
        return
    for target, reason in check(found.targets).items():
        yield Finding(
            "TAILSPAN_PATCH", f"no {target.module}:{target.path} ({reason})", "Correct the entry, or remove it"
        )  # fmt: skip
    yield Finding("TAILSPAN_PATCH", f"{len(found.targets)} functions of your own")


def _shared_memory(settings: Settings) -> Finding:
    folder = settings.runtime_dir
    existing = folder if folder.exists() else folder.parent
    if not os.access(existing, os.W_OK):
        return Finding("recorder", f"cannot write to {existing}", "Set TAILSPAN_RUNTIME_DIR to a folder on tmpfs")
    free_mib = shutil.disk_usage(existing).free >> 20
    ring_mib = settings.ring_records * 64 / (1 << 20)
    text = f"rings of {ring_mib:g} MiB a thread in {folder}, {free_mib} MiB free"
    if free_mib < 32:
        return Finding("recorder", text, "Give /dev/shm more room (docker: --shm-size) or set TAILSPAN_RUNTIME_DIR")
    return Finding("recorder", text)


def _workers(settings: Settings) -> Iterator[Finding]:
    for directory in sorted(settings.runtime_dir.glob("worker-*")):
        rings = []
        for path in directory.glob("*.ring"):
            with contextlib.suppress(OSError, ValueError):
                rings.append(RingReader(path))
        alive = {ring.header.pid for ring in rings if ring.alive}
        records, requests = sum(ring.dropped for ring in rings), sum(ring.dropped_requests for ring in rings)
        for ring in rings:
            ring.close()
        if records or requests:
            yield Finding(
                "worker", f"{directory.name}: dropped {records:,} records and {requests:,} whole requests, rings full",
                "Raise TAILSPAN_RING_RECORDS, and see that its agent runs",
            )  # fmt: skip
        elif alive:
            pids = ", ".join(map(str, sorted(alive)))
            yield Finding("worker", f"{directory.name}: processes {pids}, {len(rings)} rings, nothing dropped")
        elif not _has_agent(directory):
            yield Finding(
                "worker", f"{directory.name}: left behind, neither worker nor agent lives",
                f"Read: `tailspan blackbox {directory}`. Send: `tailspan agent {directory}`. Or delete it",
            )  # fmt: skip


def _has_agent(directory: Path) -> bool:
    try:
        with (directory / "agent.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _endpoint() -> Finding:
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return Finding("export", "OTEL_SDK_DISABLED=true: nothing is sent", "Unset it to send traces")
    endpoint = (
        os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        or "http://localhost:4317"
    )
    parts = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
    try:
        with socket.create_connection((parts.hostname or "localhost", parts.port or 4317), timeout=2):
            return Finding("export", f"{endpoint} answers")
    except (OSError, ValueError) as error:
        return Finding(
            "export", f"{endpoint} does not answer ({error})",
            "Start a collector (`tailspan up`) or set OTEL_EXPORTER_OTLP_ENDPOINT",
        )  # fmt: skip
