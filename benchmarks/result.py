"""What a benchmark measured, beside the goal and the peer it is held against.

Errors: ValueError for a result that cannot be judged.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Result:
    """One row of a benchmark's table.

    `goal` is a bound on `value`: `at most` unless `higher_is_better`. Peer values come from the same run on the same
    machine, so that their ratio means something; None where there is no peer.
    """

    name: str
    value: float
    unit: str
    goal: float
    higher_is_better: bool = False
    peer: str | None = None
    peer_value: float | None = None

    def __post_init__(self) -> None:
        """Refuse a value that compares as false whatever the goal."""
        if not math.isfinite(self.value):
            raise ValueError(f"{self.name}: {self.value} is not a measurement")

    @property
    def holds(self) -> bool:
        """Whether the goal is met."""
        return self.value >= self.goal if self.higher_is_better else self.value <= self.goal

    def to_json(self) -> str:
        """Return the line that machines read."""
        row: dict[str, Any] = {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "goal": self.goal,
            "peer": self.peer,
            "peer_value": self.peer_value,
            "holds": self.holds,
        }
        return json.dumps(row)
