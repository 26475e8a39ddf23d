"""Reads the requests of one side of a comparison, all of them or a sample that is the same part of every window.

In: a client, a group, how many requests to read at most. Out: `Sample`.
Memory: some 300 bytes for each request read. A sample is of whole requests, by trace id: first by its leading bytes,
which skips what is not read, and by a hash of it where ids do not begin at random (their number tells).
Errors: `UserError` as `client` says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tailspan_queries.client import Client
from tailspan_queries.compare_records import REQUEST, Group, Part, Sample
from tailspan_queries.times import NS_PER_SECOND

DEFAULT_LIMIT = 50_000
"""Requests of a side that are read unless the caller decides."""
BLOCKS = 30
"""Blocks that a side is divided into: with fewer, intervals are wide; with more, they are blind to slow swings."""
SHORTEST_BLOCK_NS = NS_PER_SECOND
_COLUMNS = ("weights", "input_tokens", "output_tokens", "failed")
_ALL_IDS = 2**128
_RANDOM = 0.5
"""By how much a sample may miss its number before ids are taken for not random; for samples of `_SURE` on."""
_SURE = 1000
_FURTHER = 4.0
"""Of a rare attribute so many times more requests are gone through to find enough that have it."""


def read_sample(client: Client, group: Group, limit: int = DEFAULT_LIMIT, blocks: int = BLOCKS) -> Sample:
    """Read the requests of a group; of more than `limit`, a sample of about that many."""
    kept = kept_requests(client, group)
    ratio = min(1.0, limit / kept) if kept else 1.0
    shortest_ns = min(window.until_ns - window.since_ns for window in group.windows)
    block_ns = max(math.ceil(shortest_ns / blocks), SHORTEST_BLOCK_NS)
    answers = read_windows(client, group, block_ns, {"last": last_id(ratio)})
    if ratio == 1:
        return collect(group, answers, block_ns, ratio)
    found = sum(len(row["numbers"]) for rows in answers for row in rows if row["part"] == REQUEST)
    if group.key and found < limit / 2:
        ratio = min(1.0, ratio * min(limit / max(found, 1), _FURTHER))
        answers = read_windows(client, group, block_ns, {"last": last_id(ratio)})
    elif not group.key and kept * ratio >= _SURE and abs(found / (kept * ratio) - 1) > _RANDOM:
        modulo = math.ceil(1 / ratio)
        ratio = 1 / modulo
        answers = read_windows(client, group, block_ns, {"modulo": modulo})
    return collect(group, answers, block_ns, ratio)


def kept_requests(client: Client, group: Group) -> int:
    """Return how many requests are stored for the windows, whatever their attributes."""
    total = 0
    for window in group.windows:
        parameters = {**window.whole_minutes.parameters, **group.filters.parameters}
        total += int(client.run("data_range", parameters).records()[0]["window_kept"])
    return total


def last_id(ratio: float) -> str:
    """Return the last trace id of the first `ratio` of all, hexadecimal."""
    return f"{min(max(int(ratio * _ALL_IDS), 1), _ALL_IDS) - 1:032x}"


def read_windows(
    client: Client, group: Group, block_ns: int, chosen: Mapping[str, str | int]
) -> list[list[dict[str, Any]]]:
    """Ask for the requests of each window."""
    about = {**group.filters.parameters, "attribute": group.key, "value": group.value, "block_ns": block_ns, **chosen}
    return [client.run("compare", {**window.parameters, **about}).records() for window in group.windows]


def collect(group: Group, answers: Sequence[Sequence[Mapping[str, Any]]], block_ns: int, ratio: float) -> Sample:
    """Put the answers of all windows into one sample, requests and blocks numbered through."""
    columns: dict[str, list[Any]] = {name: [] for name in ("blocks", *_COLUMNS)}
    numbers: dict[str, list[Any]] = {}
    walls: dict[str, list[Any]] = {}
    first_block = first_request = 0
    for window, rows in zip(group.windows, answers, strict=True):
        requests = [row for row in rows if row["part"] == REQUEST]
        count = sum(len(row["numbers"]) for row in requests)
        # Numbers are unique within the answer, but neither in order nor without gaps.
        places = np.concatenate([np.zeros(0, np.int64), *(np.asarray(row["numbers"], np.int64) for row in requests)])
        order = np.argsort(places)
        known = places[order]
        for row in requests:
            columns["blocks"].append(np.full(len(row["numbers"]), row["block"] + first_block))
            for name in _COLUMNS:
                columns[name].append(np.asarray(row[name]))
        for row in rows:
            found = order[np.searchsorted(known, np.asarray(row["numbers"], np.int64))]
            numbers.setdefault(row["part"], []).append(found + first_request)
            walls.setdefault(row["part"], []).append(np.asarray(row["wall_ns"], np.float64))
        first_request += count
        first_block += math.ceil((window.until_ns - window.since_ns) / block_ns)
    joined = {name: np.concatenate([np.zeros(0), *arrays]) for name, arrays in columns.items()}
    return Sample(
        group=group,
        blocks=joined["blocks"].astype(np.int64),
        block_count=first_block,
        block_ns=block_ns,
        weights=joined["weights"],
        input_tokens=joined["input_tokens"].astype(np.int64),
        output_tokens=joined["output_tokens"].astype(np.int64),
        failed=joined["failed"].astype(np.int64),
        parts={name: Part(np.concatenate(numbers[name]), np.concatenate(walls[name])) for name in walls},
        kept_ratio=ratio,
    )
