"""The weight of a sampled span: what counts as one, that none is lost, and that whole weights are right in the mean."""

from __future__ import annotations

import hashlib
import math

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from tailspan import attributes
from tailspan_collector.embedded import EmbeddedSink, Engine
from tailspan_collector.signals import TRACES
from tests.support.otlp_messages import framed

SPANS = 20_000


def export(name: str, weights: list[AnyValue | None]) -> bytes:
    """Return an export request with a request span for each weight, in a trace of its own."""
    message = ExportTraceServiceRequest()
    spans = message.resource_spans.add().scope_spans.add().spans
    for number, weight in enumerate(weights, start=1):
        trace_id = hashlib.md5(f"{name} {number}".encode(), usedforsecurity=False).digest()
        span = spans.add(trace_id=trace_id, span_id=number.to_bytes(8, "big"), name=name, end_time_unix_nano=1000)
        span.attributes.append(KeyValue(key=attributes.ROLE, value=AnyValue(string_value=attributes.ROLE_REQUEST)))
        if weight is not None:
            span.attributes.append(KeyValue(key=attributes.WEIGHT, value=weight))
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("value", "weight", "kept_as"),
    [
        (None, 1.0, None),
        (AnyValue(double_value=1.0), 1.0, "double"),
        (AnyValue(double_value=10.0), 10.0, None),
        (AnyValue(double_value=1 / 0.3), 1 / 0.3, None),
        (AnyValue(double_value=1e9), 1e9, None),
        (AnyValue(double_value=math.nextafter(1e9, math.inf)), 1.0, "double"),
        (AnyValue(double_value=1e300), 1.0, "double"),
        (AnyValue(double_value=0.5), 1.0, "double"),
        (AnyValue(double_value=-3.0), 1.0, "double"),
        (AnyValue(double_value=math.inf), 1.0, "double"),
        (AnyValue(double_value=-math.inf), 1.0, "double"),
        (AnyValue(double_value=math.nan), 1.0, "double"),
        (AnyValue(int_value=10), 1.0, "int"),
        (AnyValue(string_value="10"), 1.0, "string"),
    ],
    ids=str,
)
def test_a_weight_is_a_double_from_1_to_a_billion(
    engine: Engine, value: AnyValue | None, weight: float, kept_as: str | None
) -> None:
    """What is no weight counts as 1 and stays in the map of its type; a weight has only its column."""
    name = f"weight {value}".replace("\n", " ")
    EmbeddedSink(engine).insert(TRACES, framed(export(name, [value])), name)
    found = engine.rows(
        f"select weight, mapContains(attributes_double, '{attributes.WEIGHT}'), "
        f"mapContains(attributes_int, '{attributes.WEIGHT}'), mapContains(attributes_string, '{attributes.WEIGHT}'), "
        f"toString(attributes_double['{attributes.WEIGHT}']) from tailspan.spans where name = '{name}'"
    )
    (row,) = found
    assert float(row[0]) == weight
    assert row[1:4] == [str(int(kept_as == kind)) for kind in ("double", "int", "string")]
    if kept_as == "double":
        assert value is not None
        assert math.isclose(float(row[4]), value.double_value) or math.isnan(value.double_value)
        assert math.isnan(float(row[4])) == math.isnan(value.double_value)


def test_whole_weights_are_right_in_the_mean(engine: Engine) -> None:
    """A weight that is no whole number is rounded up or down by trace, so that the sum over many stays right."""
    sink = EmbeddedSink(engine)
    sink.insert(TRACES, framed(export("whole", [AnyValue(double_value=3.3)] * SPANS)), "whole")
    sink.insert(TRACES, framed(export("exact", [AnyValue(double_value=7.0)] * 1000)), "exact")
    rows = dict(engine.rows("select whole_weight, count() from tailspan.requests where name = 'whole' group by all"))
    assert set(rows) == {"3", "4"}
    # A share of 0.3 of 20,000 has a standard error of 65.
    assert int(rows["4"]) == pytest.approx(0.3 * SPANS, abs=5 * 65)
    assert engine.rows("select distinct whole_weight from tailspan.requests where name = 'exact'") == [["7"]]


def test_a_senseless_weight_does_not_change_the_sums_of_others(engine: Engine) -> None:
    """Beside proper weights, each span with a weight that is none adds one request and its time to the sums."""
    none = [AnyValue(double_value=value) for value in (1e300, -1e300, math.inf, -math.inf, math.nan)]
    before = totals(engine)
    EmbeddedSink(engine).insert(TRACES, framed(export("senseless", [*none, AnyValue(double_value=2.5)])), "senseless")
    after = totals(engine)
    assert [now - then for now, then in zip(after, before, strict=True)] == pytest.approx([6, 7.5, 7500])


def test_the_rollup_and_the_index_of_traces_use_weights(engine: Engine) -> None:
    """Counts and sums of the rollup add weights up, the number of stored spans beside them; a trace has its weight."""
    name = "rolled up"
    weights: list[AnyValue | None] = [AnyValue(double_value=2.5), AnyValue(double_value=4.0), None]
    before = totals(engine)
    EmbeddedSink(engine).insert(TRACES, framed(export(name, weights)), name)
    after = totals(engine)
    assert [now - then for now, then in zip(after, before, strict=True)] == pytest.approx([3, 7.5, 7500])
    rows = engine.rows(
        "select weight from tailspan.trace_summaries where trace_id in "
        f"(select trace_id from tailspan.spans where name = '{name}' and weight = 4)"
    )
    assert float(rows[0][0]) == 4.0


def totals(engine: Engine) -> list[float]:
    """Return stored spans, count and sum of wall times of all requests in the rollup."""
    (row,) = engine.rows(
        "select sum(span_count), sum(count), sum(wall_sum_ns) from tailspan.stage_minutes where stage = 'request'"
    )
    return [float(value) for value in row]
