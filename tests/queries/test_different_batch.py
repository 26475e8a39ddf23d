"""The batch that a request decoded in, as query `different` has it, against a sum over the steps of its engine."""

import math
from collections import Counter

from tailspan import attributes
from tailspan_queries.client import Client
from tailspan_queries.times import Window
from tests.queries import traffic
from tests.queries.engine_traffic import Engine


def batch_class(engine: Engine, request: traffic.Request) -> str:
    """Return the class of the mean batch over the stored steps of a request's decode, empty without any."""
    decodes = [
        stage.extra for stage in request.stages if stage.name == "decode" and attributes.STEP_LAST in stage.extra
    ]
    if not decodes:
        return ""
    first = min(int(keys[attributes.STEP_FIRST]) for keys in decodes)
    last = max(int(keys[attributes.STEP_LAST]) for keys in decodes)
    taken = [step for step in engine.stored if first <= step.number <= last]
    weight = sum(step.weight for step in taken)
    if not weight:
        return ""
    mean = sum((step.decode_tokens + (step.prefill_tokens > 0)) * step.weight for step in taken) / weight
    return str(2 ** math.floor(math.log2(mean)))


def test_the_batch_is_the_mean_over_the_steps_of_the_decode(
    client: Client, served: list[tuple[Engine, traffic.Request]], engine_window: Window
) -> None:
    """Each request is in the class of its mean batch, in none without stored steps; a sample has no such classes."""
    expected = Counter(
        batch_class(engine, request)
        for engine, request in served
        if engine_window.since_ns <= request.start_ns < engine_window.until_ns
    )
    rows = client.run("different", engine_window.parameters).records()
    found = {row["value"]: row["kept_requests"] for row in rows if row["attribute"] == "batch"}
    assert len(found) > 2
    assert found == {value: count for value, count in expected.items() if value}
    rows = client.run("different", {**engine_window.parameters, "parts": 4095}).records()
    assert rows
    assert "batch" not in {row["attribute"] for row in rows}, "steps are in no sample"
