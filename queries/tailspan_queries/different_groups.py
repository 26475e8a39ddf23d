"""Groups of requests by one attribute, from the rows of query `different`.

A value of an attribute is a group; of an attribute with an order (`ORDERED`) each class and all above it are one, and
all below it another. In: rows. Out: `Group` records. Units: ns, weighted counts. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from tailspan import attributes
from tailspan_queries import units

Numbers = npt.NDArray[np.float64]
ORDERED = (attributes.GEN_AI_INPUT_TOKENS, attributes.GEN_AI_OUTPUT_TOKENS, "batch")
"""Attributes of which the query gives classes by powers of two."""
TITLES = {
    attributes.GEN_AI_MODEL: "model",
    attributes.GEN_AI_INPUT_TOKENS: "prompt tokens",
    attributes.GEN_AI_OUTPUT_TOKENS: "output tokens",
    attributes.GEN_AI_STREAM: "streamed",
    attributes.SERVICE_NAME: "service",
    attributes.SERVICE_INSTANCE: "instance",
    attributes.ENGINE_ID: "engine",
    attributes.PRIORITY: "priority",
    attributes.LORA: "LoRA",
    attributes.OUTCOME: "outcome",
}
"""Short names for people; others are shown as they are."""


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that have something in common; `relation` is `=`, `>=` or `<`. Counts by block of time are arrays."""

    attribute: str
    relation: str
    value: str
    kept_requests: int
    kept_slow: int
    requests: float
    slow_requests: float
    squared_weight: float
    block_requests: Numbers
    block_slow: Numbers
    stage_sums: Mapping[str, tuple[float, float]]
    """Of each stage the sum over all requests and over slow ones, ns."""
    members: frozenset[int]
    """Numbers of its requests in the sample that all groups share; those of slow ones are even."""

    @property
    def name(self) -> str:
        """The group in words."""
        sign = "" if self.relation == "=" else f"{self.relation} "
        return f"{TITLES.get(self.attribute, self.attribute)} {sign}{self.value}"

    def slow_stage_means(self) -> dict[str, float]:
        """Return the mean of each stage over slow requests, ns."""
        return {stage: units.part(sums[1], self.slow_requests) for stage, sums in self.stage_sums.items()}

    def other_stage_means(self) -> dict[str, float]:
        """Return the mean of each stage over requests that are not slow, ns."""
        others = self.requests - self.slow_requests
        return {stage: units.part(sums[0] - sums[1], others) for stage, sums in self.stage_sums.items()}


def group_of(row: Mapping[str, Any]) -> Group:
    """Read one row."""
    sums = zip(row["stage_sum_ns"], row["slow_sum_ns"], strict=True)
    value = row["value"]
    return Group(
        attribute=row["attribute"],
        relation="=",
        value=f"{float(value):.0f}" if row["attribute"] in ORDERED else value,
        kept_requests=row["kept_requests"],
        kept_slow=row["kept_slow"],
        requests=row["requests"],
        slow_requests=row["slow_requests"],
        squared_weight=row["squared_weight"],
        block_requests=np.array(row["block_requests"], dtype=np.float64),
        block_slow=np.array(row["block_slow"], dtype=np.float64),
        stage_sums=dict(zip(row["stages"], sums, strict=True)),
        members=frozenset(row["members"]),
    )


def united(first: Group, second: Group) -> Group:
    """Return two groups without a common request as one."""
    stages = {*first.stage_sums, *second.stage_sums}
    nothing = (0.0, 0.0)
    sums = {}
    for stage in stages:
        one, other = first.stage_sums.get(stage, nothing), second.stage_sums.get(stage, nothing)
        sums[stage] = (one[0] + other[0], one[1] + other[1])
    return Group(
        attribute=first.attribute,
        relation=first.relation,
        value=first.value,
        kept_requests=first.kept_requests + second.kept_requests,
        kept_slow=first.kept_slow + second.kept_slow,
        requests=first.requests + second.requests,
        slow_requests=first.slow_requests + second.slow_requests,
        squared_weight=first.squared_weight + second.squared_weight,
        block_requests=first.block_requests + second.block_requests,
        block_slow=first.block_slow + second.block_slow,
        stage_sums=sums,
        members=first.members | second.members,
    )


def groups_of(rows: Iterable[Mapping[str, Any]]) -> tuple[Group | None, list[Group]]:
    """Return all requests as one group (None without any) and every group to be judged."""
    read = [group_of(row) for row in rows]
    everything = next((group for group in read if not group.attribute), None)
    found = [group for group in read if group.attribute and group.attribute not in ORDERED]
    for attribute in ORDERED:
        classes = sorted(
            (group for group in read if group.attribute == attribute), key=lambda group: float(group.value)
        )
        found += ordered_groups(classes)
    return everything, found


def ordered_groups(classes: Sequence[Group]) -> list[Group]:
    """Return for each bound between classes what is at or above it, and what is below."""
    below = list(accumulate(classes, united))
    above = list(accumulate(reversed(classes), united))[::-1]
    found = []
    for place in range(1, len(classes)):
        bound = classes[place].value
        found += [
            replace(above[place], relation=">=", value=bound),
            replace(below[place - 1], relation="<", value=bound),
        ]
    return found
