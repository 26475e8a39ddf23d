"""Starts the SDK clients and reads their reports; installs the SDK for Node once, outside of the checkout."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
NODE_PACKAGES = {
    "@opentelemetry/api": "^1.9.0",
    "@opentelemetry/resources": ">=2.0.0",
    "@opentelemetry/sdk-trace-base": ">=2.0.0",
    "@opentelemetry/exporter-trace-otlp-http": ">=0.200.0",
    "@opentelemetry/exporter-trace-otlp-proto": ">=0.200.0",
    "@opentelemetry/exporter-trace-otlp-grpc": ">=0.200.0",
}


class NodeMissingError(RuntimeError):
    """The SDK for Node cannot be had; the message says why."""


def node_modules() -> Path:
    """Return the folder in which the SDK for Node is installed.

    Raises:
        NodeMissingError: there is no Node, or npm cannot install.
    """
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise NodeMissingError("node or npm is not installed")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tailspan-tests" / "otel-node"
    if (cache / "installed").exists():
        return cache
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "package.json").write_text(json.dumps({"private": True, "dependencies": NODE_PACKAGES}))
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    try:
        done = subprocess.run(command, cwd=cache, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired as error:
        raise NodeMissingError("npm install took more than two minutes") from error
    if done.returncode:
        raise NodeMissingError(f"npm install failed: {done.stderr.strip()[-300:]}")
    (cache / "installed").touch()
    return cache


@dataclass(frozen=True, slots=True)
class Kind:
    """Which SDK, over what."""

    sdk: str
    protocol: str
    gzip: bool

    @property
    def label(self) -> str:
        """A short name."""
        return f"{self.sdk} {self.protocol}{' gzip' if self.gzip else ''}"


KINDS = (
    Kind("python", "grpc", False),
    Kind("node", "http/json", False),
    Kind("python", "http/protobuf", False),
    Kind("node", "grpc", False),
    Kind("python", "grpc", True),
    Kind("python", "http/protobuf", True),
    Kind("python", "grpc", False),
    Kind("python", "http/protobuf", False),
)


@dataclass(slots=True)
class Client:
    """One process; its service name is its own."""

    kind: Kind
    name: str
    spans: int
    report: Path
    process: subprocess.Popen[bytes]
    settled: int = 0

    def look(self) -> int:
        """Return the spans whose export is over."""
        with contextlib.suppress(FileNotFoundError, ValueError):  # not yet there, or being written
            self.settled = max(self.settled, int(self.report.with_suffix(".progress").read_text()))
        return self.settled

    def result(self) -> dict[str, Any]:
        """Return its report once it ended."""
        assert self.process.wait() == 0, f"client {self.name} ended with {self.process.returncode}"
        found: dict[str, Any] = json.loads(self.report.read_text())
        return found


def start(
    kind: Kind, number: int, spans: int, rate: float, endpoints: dict[str, str], folder: Path, modules: Path | None
) -> Client:
    """Start one client that makes `rate` spans a second at most; `endpoints` by `grpc` and `http`."""
    name = f"chaos-{number}-{kind.sdk}"
    report = folder / f"{name}.json"
    plan = {
        "name": name,
        "protocol": kind.protocol,
        "endpoint": endpoints["grpc" if kind.protocol == "grpc" else "http"],
        "spans": spans,
        "rate": rate,
        "gzip": kind.gzip,
        "seed": number,
        "report": str(report),
        "modules": str(modules),
    }
    program = [sys.executable, str(FOLDER / "python_client.py")]
    if kind.sdk == "node":
        program = ["node", str(FOLDER / "node_client.mjs")]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TAILSPAN_"))}
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([*program, json.dumps(plan)], env=env, stdout=log, stderr=log)
    return Client(kind, name, spans, report, process)
