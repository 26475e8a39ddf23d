"""Limits of latency (SLOs) that a request must meet, and how many requests met them.

In: `--slo ttft=500ms`, any of `METRICS`. Out: `Slo`, `Goodput`.
Goodput is that of `vllm bench serve --goodput`: requests that completed and met ALL limits, by second; a value equal to
the limit meets it, and TPOT of an answer of fewer than two tokens is 0. Query `goodput` holds the formula.
Beyond it: a limit of ITL, which `vllm bench serve` does not have, is for the p99 of the request's own gaps.
Errors: `UserError` for what is no limit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tailspan.errors import UserError
from tailspan_queries.units import part

METRICS = ("ttft", "itl", "tpot", "e2e")
PARAMETERS = {
    "ttft": "ttft_slo_ns",
    "itl": "itl_slo_ns",
    "tpot": "tpot_slo_ns",
    "e2e": "end_to_end_slo_ns",
}
"""The parameter of query `goodput` for the limit of each."""
TITLES = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2e": "end-to-end"}
ALIASES = {"e2el": "e2e"}
"""Names that `vllm bench serve` has for the same."""
_LIMIT = re.compile(r"(\w+)[=:](\d+(?:\.\d+)?)(ns|us|µs|ms|s|m)?")
_UNITS_NS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9}


@dataclass(frozen=True, slots=True)
class Slo:
    """One limit: a request meets it if its value is at most `limit_ns`."""

    metric: str
    limit_ns: int


@dataclass(frozen=True, slots=True)
class Met:
    """How many completed requests met one limit, and how many missed that one alone."""

    slo: Slo
    met: int
    missed_alone: int


@dataclass(frozen=True, slots=True)
class Goodput:
    """How many of the `completed` requests met all limits (`good`), and each of them."""

    completed: int
    good: int
    limits: tuple[Met, ...]

    @property
    def good_ratio(self) -> float | None:
        """Share of the completed requests that met all limits; None if none completed."""
        return part(self.good, self.completed) if self.completed else None

    @property
    def worst(self) -> Met | None:
        """The limit that most requests missed; None if none was missed."""
        missed = [limit for limit in self.limits if limit.met < self.completed]
        return min(missed, key=lambda limit: (limit.met, -limit.missed_alone), default=None)


def parse_slos(texts: Sequence[str]) -> tuple[Slo, ...]:
    """Read limits such as `ttft=500ms`; without a unit they are milliseconds, as in `vllm bench serve`.

    Raises: UserError if one does not read, is 0, or is given twice.
    """
    found: dict[str, Slo] = {}
    for text in texts:
        match = _LIMIT.fullmatch(text.strip())
        metric = ALIASES.get(match[1].lower(), match[1].lower()) if match else ""
        if match is None or metric not in METRICS:
            raise UserError(f"--slo {text!r} is no limit", f"Write --slo ttft=500ms; there are {', '.join(METRICS)}")
        limit_ns = round(float(match[2]) * _UNITS_NS[match[3] or "ms"])
        if not 0 < limit_ns < 2**63:
            raise UserError(f"--slo {text!r} is no time that a request could take", "Give more than 0")
        if metric in found:
            raise UserError(f"--slo gives two limits of {metric}", "Give one")
        found[metric] = Slo(metric, limit_ns)
    return tuple(found[metric] for metric in METRICS if metric in found)


def slo_parameters(slos: Sequence[Slo]) -> dict[str, int]:
    """Return the parameters of query `goodput`; 0 where there is no limit."""
    limits = {slo.metric: slo.limit_ns for slo in slos}
    return {parameter: limits.get(metric, 0) for metric, parameter in PARAMETERS.items()}


def goodput(row: Mapping[str, Any], slos: Sequence[Slo]) -> Goodput:
    """Read a row of query `goodput`."""
    limits = tuple(Met(slo, row[f"{slo.metric}_met"], row[f"{slo.metric}_alone"]) for slo in slos)
    return Goodput(row["completed"], row["good"], limits)
