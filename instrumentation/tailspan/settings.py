"""The settings of an instrumented worker, read once from the environment.

Errors: a wrong value raises `UserError` that names the variable, the value and what is allowed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tailspan.errors import UserError

WORKER_DIR = "TAILSPAN_WORKER_DIR"
"""Folder of the rings of one worker tree; set by the first instrumented process and inherited by its children."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the worker side can be told.

    enabled: TAILSPAN_ENABLED; 0 keeps `tailspan run` and `opentelemetry-instrument` from tracing a process.
    strict: TAILSPAN_STRICT=1 re-raises errors inside hooks (tests); default off.
    engines: TAILSPAN_ENGINES, comma-separated names; default all.
    ring_records: TAILSPAN_RING_RECORDS, records a thread's ring holds, a power of two; 64 bytes each, default 32768.
    runtime_dir: TAILSPAN_RUNTIME_DIR, parent of the worker folders; default /dev/shm or the temporary folder.
    exit_timeout_s: TAILSPAN_EXIT_TIMEOUT, seconds a worker that ends waits for delivery, default 5.
    stall_timeout_s: TAILSPAN_STALL_TIMEOUT, seconds without a step after which an engine that has requests counts as
    stalled, default 60; 0 never.
    server_timing: TAILSPAN_SERVER_TIMING=1 tells callers their times in the engine (`asgi_timing`); default off.
    device_timing: TAILSPAN_DEVICE_TIMING=0 leaves out what the device's own clock says of each step; default on.
    layer_budget: TAILSPAN_LAYER_BUDGET, given in percent, default 0.5: share of the steps' time that timing the layers
    of some of them may cost; 0 times none.
    agent: TAILSPAN_AGENT, `auto` (start one) or `external` (one already reads the folder).
    """

    enabled: bool | None
    strict: bool
    engines: frozenset[str] | None
    ring_records: int
    runtime_dir: Path
    exit_timeout_s: float
    stall_timeout_s: float
    server_timing: bool
    device_timing: bool
    layer_budget: float
    agent: str

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read and check all variables."""
        env = os.environ if environment is None else environment
        return cls(
            enabled=flag(env, "TAILSPAN_ENABLED"),
            strict=bool(flag(env, "TAILSPAN_STRICT")),
            engines=chosen_engines(env),
            ring_records=_power_of_two(env, "TAILSPAN_RING_RECORDS", 32768),
            runtime_dir=Path(env.get("TAILSPAN_RUNTIME_DIR") or _default_runtime_dir()),
            stall_timeout_s=_seconds(env, "TAILSPAN_STALL_TIMEOUT", 60.0),
            server_timing=bool(flag(env, "TAILSPAN_SERVER_TIMING")),
            device_timing=flag(env, "TAILSPAN_DEVICE_TIMING") is not False,
            layer_budget=_percent(env, "TAILSPAN_LAYER_BUDGET", 0.5, 50.0),
            exit_timeout_s=_seconds(env, "TAILSPAN_EXIT_TIMEOUT", 5.0),
            agent=_choice(env, "TAILSPAN_AGENT", ("auto", "external")),
        )


def chosen_engines(environment: Mapping[str, str]) -> frozenset[str] | None:
    """Return the engines that TAILSPAN_ENGINES names, None for all."""
    engines = environment.get("TAILSPAN_ENGINES", "").strip()
    return frozenset(name.strip() for name in engines.split(",")) if engines else None


def _default_runtime_dir() -> Path:
    base = Path("/dev/shm")  # noqa: S108 (shared memory is the point; the folder below it is private)
    if not os.access(base, os.W_OK):
        import tempfile

        base = Path(tempfile.gettempdir())
    return base / f"tailspan-{os.getuid()}"


def flag(env: Mapping[str, str], name: str) -> bool | None:
    """Return whether a switch is on, None where it is not set."""
    value = env.get(name, "").strip().lower()
    if value == "":
        return None
    if value in ("1", "true", "yes", "on"):
        return True
    if value in ("0", "false", "no", "off"):
        return False
    raise UserError(f"{name}={value!r} is not a switch", "Use 1 or 0")


def _power_of_two(env: Mapping[str, str], name: str, default: int) -> int:
    value = env.get(name, "").strip()
    if not value:
        return default
    if not value.isdigit() or int(value) < 64 or int(value) & (int(value) - 1):
        raise UserError(f"{name}={value!r} is not a ring size", "Use a power of two from 64, for example 32768")
    return int(value)


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    value = env.get(name, "").strip()
    if not value:
        return default
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise UserError(f"{name}={value!r} is not a number of seconds", "Use 0 to 3600, for example 5")
    return seconds


def _percent(env: Mapping[str, str], name: str, default: float, most: float) -> float:
    """Return the share of 1."""
    value = env.get(name, "").strip().removesuffix("%")
    try:
        percent = float(value) if value else default
    except ValueError:
        percent = -1.0
    if not 0 <= percent <= most:
        raise UserError(f"{name}={value!r} is not a percentage", f"Use 0 to {most:g}, for example {default:g}")
    return percent / 100


def _choice(env: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = env.get(name, "").strip() or allowed[0]
    if value not in allowed:
        raise UserError(f"{name}={value!r} is not known", f"Use one of: {', '.join(allowed)}")
    return value
