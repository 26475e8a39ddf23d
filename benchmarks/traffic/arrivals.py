"""Real arrivals of LLM requests with their lengths, and their replay over a longer time.

In:    `azure_llm_2023_conv.csv`, `azure_llm_2023_code.csv` (Azure public dataset, CC-BY 4.0) and
       `mooncake_conversation.jsonl` (Mooncake, FAST'25, Apache-2.0) in `../shared/data` beside the checkout, or in
       the folder that TAILSPAN_ARRIVALS names.
Out:   `Arrivals`: seconds since the first request, in order, with prompt and output tokens.
Units: s; tokens.
Errors: `UserError` where the data are absent.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tailspan.errors import UserError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
CONV, CODE, MOONCAKE = "azure_llm_2023_conv.csv", "azure_llm_2023_code.csv", "mooncake_conversation.jsonl"
_MOONCAKE_STEP_S = 3.0
"""The trace's timestamps come in steps of 3 s; requests of a step are spread evenly over it."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests in the order of time: four arrays of one length, but `length_s`, the time that the trace covers."""

    at_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    length_s: float

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.at_s) / self.length_s


def folder() -> Path:
    """Return where the traces are expected."""
    given = os.environ.get("TAILSPAN_ARRIVALS")
    return Path(given) if given else Path(__file__).resolve().parents[3] / "shared" / "data"


def load(name: str) -> Arrivals:
    """Read one trace.

    Raises: UserError if the file is not there.
    """
    return _read(folder() / name)


@cache
def _read(path: Path) -> Arrivals:
    if not path.is_file():
        raise UserError(
            f"the arrival trace {path} is absent", "Put it there, or name the folder that has it with TAILSPAN_ARRIVALS"
        )
    if path.suffix == ".jsonl":
        return _mooncake(path)
    stamps, tokens = [], []
    for line in path.read_text(encoding="ascii").splitlines()[1:]:
        stamp, *lengths = line.split(",")
        stamps.append(stamp)
        tokens.append([int(length) for length in lengths])
    at_s = np.array(stamps, "datetime64[ns]").astype(np.int64) / 1e9
    return _sorted(at_s, np.array(tokens, np.int64), 0.0)


def _mooncake(path: Path) -> Arrivals:
    rows = [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
    at_s = np.array([row["timestamp"] for row in rows]) / 1000.0
    jitter = np.random.default_rng(5).uniform(0, _MOONCAKE_STEP_S, len(at_s))
    lengths = np.array([[row["input_length"], row["output_length"]] for row in rows], np.int64)
    return _sorted(at_s + jitter, lengths, _MOONCAKE_STEP_S)


def _sorted(at_s: Floats, lengths: Ints, step_s: float) -> Arrivals:
    order = np.argsort(at_s, kind="stable")
    at_s = at_s[order] - at_s[order[0]]
    pause_s = max(step_s, float(at_s[-1]) / len(at_s))
    return Arrivals(at_s, lengths[order, 0], lengths[order, 1], float(at_s[-1]) + pause_s)


def replay(trace: Arrivals, length_s: float, draw: np.random.Generator) -> Arrivals:
    """Return the trace again and again over `length_s`, each round turned by an offset of its own.

    Within a round the gaps, the bursts and which lengths follow which stay as they were recorded.
    """
    parts, indices = [], []
    for round_number in range(int(np.ceil(length_s / trace.length_s))):
        at_s = (trace.at_s + draw.uniform(0, trace.length_s)) % trace.length_s
        order = np.argsort(at_s, kind="stable")
        parts.append(at_s[order] + round_number * trace.length_s)
        indices.append(order)
    at_s, index = np.concatenate(parts), np.concatenate(indices)
    kept = at_s < length_s
    index = index[kept]
    return Arrivals(at_s[kept], trace.input_tokens[index], trace.output_tokens[index], length_s)


def thin(found: Arrivals, count: int, weights: Floats, draw: np.random.Generator) -> Arrivals:
    """Keep exactly `count` requests (or all, if fewer); the chance of each goes with its weight.

    Source: Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir": the smallest of E/w.
    """
    if count >= len(found.at_s):
        return found
    keys = draw.standard_exponential(len(weights)) / np.maximum(weights, 1e-12)
    return _chosen(found, np.sort(np.argpartition(keys, count)[:count]))


def thin_halves(found: Arrivals, count: int, weights: Floats, draw: np.random.Generator) -> Arrivals:
    """Keep exactly `count` requests (or all, if fewer), as many of the first half of the time as of the second.

    Where a half has too few, the other keeps more.
    """
    first = np.arange(len(found.at_s)) < np.searchsorted(found.at_s, found.length_s / 2)
    there = int(first.sum()), int((~first).sum())
    wanted = min(max(count // 2, count - there[1]), there[0])
    parts = [
        thin(_chosen(found, np.flatnonzero(half)), number, weights[half], draw)
        for half, number in ((first, wanted), (~first, count - wanted))
    ]
    at_s, prompts, outputs = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("at_s", "input_tokens", "output_tokens")
    )
    return Arrivals(at_s, prompts, outputs, found.length_s)


def _chosen(found: Arrivals, index: Ints) -> Arrivals:
    return Arrivals(found.at_s[index], found.input_tokens[index], found.output_tokens[index], found.length_s)
