"""Which attribute has a column of its own in table `spans`.

The `.sql` files are plain SQL and spell the keys again; a test holds both lists together.

A promoted attribute leaves the attribute maps only if it has the type of the column and differs from the column's value
for "absent"; so a wrong type, an explicit 0 and an explicit empty string stay in the maps and nothing is lost. So does
a weight below 1, above 1e9, infinite or NaN, which counts as 1. Of a key that occurs twice in one span the first is
promoted, the rest stay in the maps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tailspan import attributes


@dataclass(frozen=True, slots=True)
class Promoted:
    """One attribute key and the column that holds it."""

    column: str
    key: str
    kind: Literal["string", "int", "double"]
    absent: str | int | float


PROMOTED = (
    Promoted("role", attributes.ROLE, "string", ""),
    Promoted("stage", attributes.STAGE, "string", ""),
    Promoted("model", attributes.GEN_AI_MODEL, "string", ""),
    Promoted("request_id", attributes.GEN_AI_RESPONSE_ID, "string", ""),
    Promoted("engine_id", attributes.ENGINE_ID, "string", ""),
    Promoted("first_step", attributes.STEP_FIRST, "int", 0),
    Promoted("last_step", attributes.STEP_LAST, "int", 0),
    Promoted("step", attributes.STEP_NUMBER, "int", 0),
    Promoted("input_tokens", attributes.GEN_AI_INPUT_TOKENS, "int", 0),
    Promoted("output_tokens", attributes.GEN_AI_OUTPUT_TOKENS, "int", 0),
    Promoted("busy_ns", attributes.BUSY_NS, "int", 0),
    Promoted("gpu_ns", attributes.GPU_NS, "int", -1),
    Promoted("unattributed_ns", attributes.UNATTRIBUTED_NS, "int", 0),
    Promoted("ttft_ns", attributes.TTFT_NS, "int", 0),
    Promoted("weight", attributes.WEIGHT, "double", 1.0),
)
"""Span attributes with a column; `service` and `instance` copy resource attributes, which stay in `resource`."""
