"""What `--by` and `--over` mean: groups of requests and buckets of time.

In: the two options. Out: `Grouping`, the parameters of queries `stages_by`, `stages_by_rollup`, `latency`, `goodput`.
Buckets are in UTC and start at multiples of their length since 1970: a day is always 24 hours from midnight UTC.
Errors: `UserError` for a dimension or a step that there is not.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from tailspan import attributes
from tailspan.errors import UserError
from tailspan_queries.breakdown import UNKNOWN
from tailspan_queries.times import NS_PER_SECOND, SECONDS, Window
from tailspan_queries.units import EN_DASH

DIMENSIONS = (
    "model",
    "service",
    "instance",
    "engine",
    "priority",
    "lora",
    "stream",
    "prompt",
    "output",
    "batch",
)
ATTRIBUTE = "attr:"
ROLLUP_DIMENSIONS = ("", "model", "service", "instance")
"""What the per-minute rollup can be asked by."""
COLUMN_KEYS = {
    attributes.GEN_AI_MODEL: "model",
    attributes.ENGINE_ID: "engine",
    attributes.SERVICE_NAME: "service",
    attributes.SERVICE_INSTANCE: "instance",
    attributes.PRIORITY: "priority",
    attributes.LORA: "lora",
    attributes.GEN_AI_STREAM: "stream",
    attributes.GEN_AI_INPUT_TOKENS: "prompt",
    attributes.GEN_AI_OUTPUT_TOKENS: "output",
}
"""Attributes that are a dimension under another name."""
LOWEST_BOUND = {"prompt": 128, "output": 16, "batch": 2}
"""End of the group of the smallest sizes; from there on a group ends at the next power of two."""
NAMELESS = {"lora": "(base model)"}
"""What the empty key means where it is more than unknown."""
STREAMED = {"true": "streamed", "false": "in one piece"}
GROUP_LIMIT = 20
DAY_SECONDS = 86_400
MAX_BUCKETS = 10_080
"""A week of minutes."""
READ_LIMIT = 200_000
"""Stored requests up to which all are read; of more, a sample of about as many."""
STEPS = "1m, 5m, 1h or 1d"
_STEP = re.compile(r"(\d{1,6})([smhd])")


@dataclass(frozen=True, slots=True)
class Grouping:
    """Groups of requests (`by`, empty for one) in buckets of time (`step_seconds`, 0 for one).

    `by` is one of `DIMENSIONS`, or `attr` with the key in `attribute`.
    """

    by: str = ""
    attribute: str = ""
    step_seconds: int = 0
    limit: int = GROUP_LIMIT

    @property
    def parameters(self) -> dict[str, str | int]:
        """The query parameters that say this."""
        return {
            "by": self.by,
            "attribute": self.attribute,
            "step_seconds": self.step_seconds,
            "group_limit": self.limit,
        }

    @property
    def title(self) -> str:
        """What the keys are, as the head of a column."""
        unit = {"prompt": "prompt tokens", "output": "output tokens", "batch": "batch size"}
        return self.attribute if self.by == "attr" else unit.get(self.by, self.by)

    @property
    def name(self) -> str:
        """The dimension as it is written in `--by`."""
        return f"{ATTRIBUTE}{self.attribute}" if self.by == "attr" else self.by

    def in_rollup(self) -> bool:
        """Say whether the per-minute rollup can answer."""
        return self.by in ROLLUP_DIMENSIONS and self.step_seconds % 60 == 0

    def label(self, key: str) -> str:
        """Return a group's key as it is printed."""
        if not self.by:
            return "all"
        if not key:
            return NAMELESS.get(self.by, UNKNOWN)
        if self.by == "stream":
            return STREAMED.get(key, key)
        return size_label(int(key), LOWEST_BOUND[self.by]) if self.by in LOWEST_BOUND else key

    def line_name(self, key: str, bucket_ns: int | None) -> str:
        """Return what a line is about: a group, a bucket of time or both."""
        if bucket_ns is None:
            return self.label(key)
        begin = bucket_text(bucket_ns, self.step_seconds)
        return f"{begin} {self.label(key)}" if self.by else begin

    def order(self, key: str, rank: int) -> tuple[float, int]:
        """Return what sorts groups: sizes and priorities by number, others by the number of their requests."""
        ordered = self.by in LOWEST_BOUND or self.by == "priority"
        return (float(key) if key else math.inf, rank) if ordered else (0.0, rank)


def size_label(begin: int, lowest: int) -> str:
    """Return the sizes of a group such as `256–511`."""  # noqa: RUF002 (as ranges are printed)
    if begin == 0:
        return "0"
    end = lowest if begin < lowest else 2 * begin
    return str(begin) if end - begin == 1 else f"{begin}{EN_DASH}{end - 1}"


def parse_grouping(by: str, over: str, window: Window, limit: int = GROUP_LIMIT) -> Grouping:
    """Read the options `--by` and `--over`.

    Raises: UserError if a value cannot be read, or makes more than `MAX_BUCKETS` buckets of the window.
    """
    step = parse_step(over) if over else 0
    if step and buckets_of(window, step) > MAX_BUCKETS:
        raise UserError(
            f"--over {over} makes {buckets_of(window, step):,} lines of this window, more than {MAX_BUCKETS:,}",
            "Use a longer step or a shorter window",
        )
    dimension, attribute = parse_dimension(by)
    return Grouping(dimension, attribute, step, limit)


def parse_dimension(by: str) -> tuple[str, str]:
    """Return the dimension and the attribute key of it.

    Raises: UserError if there is no such dimension.
    """
    if by.startswith(ATTRIBUTE) and (key := by.removeprefix(ATTRIBUTE)):
        return (COLUMN_KEYS[key], "") if key in COLUMN_KEYS else ("attr", key)
    if by and by not in DIMENSIONS:
        raise UserError(f"--by {by!r} is no dimension", f"Use {', '.join(DIMENSIONS)} or {ATTRIBUTE}KEY")
    return by, ""


def parse_step(text: str) -> int:
    """Return the seconds of a step, which divide a day.

    Raises: UserError if they do not.
    """
    match = _STEP.fullmatch(text.strip())
    seconds = int(match[1]) * SECONDS[match[2]] if match else 0
    if not seconds or DAY_SECONDS % seconds:
        raise UserError(f"--over {text!r} is no step that divides a day", f"Use a duration such as {STEPS}")
    return seconds


def buckets_of(window: Window, step_seconds: int) -> int:
    """Return how many buckets of time a window touches."""
    step_ns = step_seconds * NS_PER_SECOND
    return -(-window.until_ns // step_ns) - window.since_ns // step_ns


def bucket_seconds(bucket_ns: int | None, step_seconds: int, window: Window) -> float:
    """Return how many seconds of the window lie in a bucket; without buckets all of them."""
    if bucket_ns is None:
        return (window.until_ns - window.since_ns) / NS_PER_SECOND
    end_ns = bucket_ns + step_seconds * NS_PER_SECOND
    return (min(end_ns, window.until_ns) - max(bucket_ns, window.since_ns)) / NS_PER_SECOND


def bucket_text(bucket_ns: int, step_seconds: int) -> str:
    """Return the begin of a bucket for people, UTC."""
    moment = datetime.fromtimestamp(bucket_ns // NS_PER_SECOND, UTC)
    if step_seconds == DAY_SECONDS:
        return f"{moment:%Y-%m-%d}"
    return f"{moment:%Y-%m-%d %H:%M}" if step_seconds % 60 == 0 else f"{moment:%Y-%m-%d %H:%M:%S}"
