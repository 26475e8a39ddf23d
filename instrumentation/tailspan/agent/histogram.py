"""Gaps between tokens as a log-bucket histogram that adds up in SQL.

Bucket b holds gaps in (2^(b/32), 2^((b+1)/32)] nanoseconds, so its bounds are 2.2 % apart and its middle is within
1.1 % of every gap in it: OpenTelemetry's exponential histogram of scale 5. Written as `bucket:count` pairs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

SCALE = 5
_BUCKETS_PER_OCTAVE = 1 << SCALE


def bucket(gap_ns: int) -> int:
    """Return the bucket of a gap; gaps below 2 ns, tokens of one step, are bucket 0."""
    return _buckets((gap_ns,))[0]


def bounds_ns(index: int) -> tuple[float, float]:
    """Return the exclusive lower and inclusive upper bound of a bucket in nanoseconds."""
    return 2 ** (index / _BUCKETS_PER_OCTAVE), 2 ** ((index + 1) / _BUCKETS_PER_OCTAVE)


def encode(gaps_ns: Iterable[int]) -> str:
    """Return the histogram of the gaps, for example `812:3 815:9`; an empty string without gaps."""
    counts = Counter(_buckets(gaps_ns))
    return " ".join([f"{index}:{count}" for index, count in sorted(counts.items())])


def _buckets(gaps_ns: Iterable[int]) -> list[int]:
    log2, ceil = math.log2, math.ceil
    return [ceil(log2(gap_ns) * _BUCKETS_PER_OCTAVE) - 1 if gap_ns >= 2 else 0 for gap_ns in gaps_ns]
