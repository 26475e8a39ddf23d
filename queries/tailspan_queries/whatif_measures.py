"""The numbers of a prediction: quantiles and means of replayed times, beside what was measured. Units: ns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tailspan_queries.whatif_records import Floats

MEASURES = (
    ("e2e mean", "e2e_ns", None),
    ("e2e P50", "e2e_ns", 0.5),
    ("e2e P99", "e2e_ns", 0.99),
    ("TTFT P50", "ttft_ns", 0.5),
    ("TTFT P99", "ttft_ns", 0.99),
    ("queue P50", "queue_ns", 0.5),
    ("queue P99", "queue_ns", 0.99),
)


@dataclass(frozen=True, slots=True)
class Measure:
    """One number, measured, replayed as it was, and predicted, ns; None where no request has it."""

    name: str
    measured_ns: float | None
    model_ns: float | None
    predicted_ns: float | None
    low_ns: float | None
    high_ns: float | None
    amdahl_ns: float | None

    @property
    def error_ratio(self) -> float | None:
        """How far the replay is off from what was measured."""
        return ratio(self.model_ns, self.measured_ns)

    @property
    def change_ratio(self) -> float | None:
        """Predicted change, replay against replay."""
        return ratio(self.predicted_ns, self.model_ns)

    def as_json(self) -> dict[str, Any]:
        """Return the fields and both ratios."""
        names = ("name", "measured_ns", "model_ns", "predicted_ns", "low_ns", "high_ns", "amdahl_ns")
        found = {name: getattr(self, name) for name in names}
        return {**found, "error_ratio": self.error_ratio, "change_ratio": self.change_ratio}


def ratio(value: float | None, reference: float | None) -> float | None:
    """Return the relative difference, None where there is nothing to compare with."""
    return None if value is None or not reference else value / reference - 1


def value_of(values: Floats, quantile: float | None) -> float | None:
    """Return a quantile (interpolated, as NumPy's default) or the mean of what is known; None of nothing."""
    found = values[~np.isnan(values)]
    if not len(found):
        return None
    return float(found.mean() if quantile is None else np.quantile(found, quantile))


def known(values: Sequence[float | None]) -> list[float]:
    """Return what is known."""
    return [value for value in values if value is not None]


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; None of nothing."""
    return math.fsum(values) / len(values) if values else None
