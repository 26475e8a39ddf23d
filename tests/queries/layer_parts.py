"""Parts of the model in the tests: the lines that a sampled step's times add up to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import pytest

from tailspan_queries.layers import LayerRow
from tailspan_queries.layers_drift import Drift
from tests.queries.layer_traffic import DeviceStep

Part = tuple[int | None, str]
BY: Mapping[str, Callable[[str], Part]] = {
    "kind": lambda name: (None, name.rpartition("/")[2]),
    "layer": lambda name: (int(name.partition("/")[0]) if "/" in name else None, ""),
    "part": lambda name: (int(name.partition("/")[0]) if "/" in name else None, name.rpartition("/")[2]),
}


def check_same(rows: Sequence[LayerRow | Drift], expected: Sequence[LayerRow | Drift]) -> None:
    """Check that two answers agree; threads add up in any order, so that the last digit of a sum may differ."""
    assert len(rows) == len(expected)
    for row, other in zip(rows, expected, strict=True):
        for name, value in asdict(row).items():
            wanted = asdict(other)[name]
            assert value == (pytest.approx(wanted, rel=1e-9) if isinstance(wanted, float) else wanted), name


def summed(item: DeviceStep, by: str) -> dict[Part, float]:
    """Return the times of a sampled step by line."""
    found: dict[Part, float] = {}
    for name, ns in item.parts.items():
        found[BY[by](name)] = found.get(BY[by](name), 0.0) + ns
    return found
