"""Reads the requests of both sides of a comparison, all of them or a sample.

In: a client, two groups, how many requests of each to read at most. Out: two `Sample`s.
A sample is of whole requests, by the hash of their trace ids (`sampling`). Both sides are read in the same parts,
unless one holds less than half as many requests: more of it is read, up to all. Of an attribute that few have more is
gone through.
Memory: some 900 bytes for each request read, and 2 KB of ClickHouse's.
Errors: `UserError` as `client` says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tailspan_queries import sampling
from tailspan_queries.client import Client
from tailspan_queries.compare_records import REQUEST, Group, Part, Sample
from tailspan_queries.times import NS_PER_SECOND, Window

DEFAULT_LIMIT = 50_000
"""Requests of a side that are read unless the caller decides."""
BLOCKS = 30
"""Blocks that a side is divided into: with fewer, intervals are wide; with more, they are blind to slow swings."""
SHORTEST_BLOCK_NS = NS_PER_SECOND
_COLUMNS = ("weights", "input_tokens", "output_tokens", "failed")
_SMALL = 0.5
"""A side that holds less of the other's requests than this gets parts of its own."""
_FEW = 0.5
"""Requests with an attribute that are too few, as a share of the limit."""
_FURTHER = 4
"""Of a rare attribute so many times more requests are gone through to find enough that have it."""


def read_samples(
    client: Client, before: Group, after: Group, limit: int | None = DEFAULT_LIMIT
) -> tuple[Sample, Sample]:
    """Read the requests of both sides; of more than `limit` a sample of about that many, None reads all."""
    traces = choose(client, before, after, limit)
    return read_sample(client, before, traces[0], limit), read_sample(client, after, traces[1], limit)


def choose(client: Client, before: Group, after: Group, limit: int | None) -> tuple[sampling.Sample, sampling.Sample]:
    """Return which traces are read of each side: the same parts, unless one side is much smaller."""
    if limit is None:
        return sampling.WHOLE, sampling.WHOLE
    if (before.windows, before.filters) == (after.windows, after.filters):
        return (alone(client, before, limit)[0],) * 2
    (earlier, earlier_kept), (later, later_kept) = alone(client, before, limit), alone(client, after, limit)
    small = min(earlier_kept, later_kept) < _SMALL * max(earlier_kept, later_kept)
    if small or earlier.whole or later.whole:
        return earlier, later
    parts = min(earlier.parts, later.parts)
    return replace(earlier, parts=parts), replace(later, parts=parts)


def alone(client: Client, group: Group, limit: int) -> tuple[sampling.Sample, int]:
    """Return which traces would be read of a group by itself, and how many requests are stored for its windows."""
    found = sampling.stored(client, group.windows, group.filters)
    return sampling.sample_of(found, limit, partial(covers, client, group.windows)), found.kept


def covers(client: Client, windows: Sequence[Window]) -> bool:
    """Say whether the stored sample holds its part of all of the windows."""
    return all(sampling.covers(client, window) for window in windows)


def read_sample(
    client: Client, group: Group, traces: sampling.Sample = sampling.WHOLE, limit: int | None = None
) -> Sample:
    """Read these traces of a group; more of them if few have its attribute, at most as many as make `limit`."""
    shortest_ns = min(window.until_ns - window.since_ns for window in group.windows)
    block_ns = max(math.ceil(shortest_ns / BLOCKS), SHORTEST_BLOCK_NS)
    answers = read_windows(client, group, block_ns, traces)
    found = sum(len(row["numbers"]) for rows in answers for row in rows if row["part"] == REQUEST)
    if limit and group.key and not traces.whole and found < limit * _FEW:
        traces = further(traces, limit, found)
        answers = read_windows(client, group, block_ns, traces)
    return collect(group, answers, block_ns, traces.ratio)


def further(traces: sampling.Sample, limit: int, found: int) -> sampling.Sample:
    """Return more traces: as many as hold `limit` requests if these hold so many, within what is stored."""
    most = sampling.STORED if traces.stored else sampling.PARTS
    return replace(traces, parts=min(most, int(traces.parts * min(limit / max(found, 1), _FURTHER))))


def read_windows(client: Client, group: Group, block_ns: int, traces: sampling.Sample) -> list[list[dict[str, Any]]]:
    """Ask for the requests of each window."""
    about = {**group.filters.parameters, "attribute": group.key, "value": group.value, "block_ns": block_ns}
    return [
        client.run("compare", {**window.parameters, **about, **traces.parameters}).records() for window in group.windows
    ]


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
