"""Valid requests to begin with: every field of the three signals, values of every kind, and one placeholder.

`SALT` stands where a trace id is (or, in metrics, the value of an attribute) and is replaced in each request that is
sent, after the mutation, so that no two are the same request.
"""

from __future__ import annotations

import pickle
import random
import time
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from tests.conformance.sending import otlp_json
from tests.conformance.signals import LOGS, METRICS, TRACES, Signal
from tests.soak.collector_fuzz.wire import parse

SALT = bytes(range(0x61, 0x71))
SALT_HEX = SALT.hex().encode()
MUTANT = "mutant"


@dataclass(frozen=True, slots=True)
class Template:
    """A request in its forms."""

    signal: Signal
    body: bytes
    pickled_tree: bytes
    json: bytes

    def tree(self) -> Any:
        """Return the tree of fields, a new one each time."""
        return pickle.loads(self.pickled_tree)


def template(signal: Signal, rng: random.Random) -> Template:
    """Return a template with random contents."""
    message = signal.message(MUTANT, rng.choice((1, 2, 3)))
    {"traces": _spans, "metrics": _points, "logs": _records}[signal.name](message, rng)
    resource = getattr(message, signal.resources)[0]
    resource.schema_url = "https://opentelemetry.io/schemas/1.27.0"
    _attributes(resource.resource.attributes, rng)
    scope = getattr(resource, resource.DESCRIPTOR.fields[1].name)[0]
    scope.scope.name, scope.scope.version = "fuzz", "1"
    _attributes(scope.scope.attributes, rng)
    body = message.SerializeToString()
    assert SALT in body
    tree = parse(body, signal.request.DESCRIPTOR)
    assert b"".join(item.encode() for item in tree) == body
    return Template(signal, body, pickle.dumps(tree), otlp_json(message))


def templates(seed: int, count: int = 60) -> list[Template]:
    """Return templates: two thirds traces."""
    rng = random.Random(seed)
    return [template(rng.choice((TRACES, TRACES, TRACES, TRACES, METRICS, LOGS)), rng) for _ in range(count)]


def _attributes(holder: Any, rng: random.Random) -> None:
    values = [
        AnyValue(string_value="text"), AnyValue(bool_value=True), AnyValue(int_value=-5), AnyValue(double_value=0.25),
        AnyValue(bytes_value=b"\x00\xff"), AnyValue(),
    ]  # fmt: skip
    array, pairs = AnyValue(), AnyValue()
    array.array_value.values.add().int_value = 1
    pairs.kvlist_value.values.add(key="k").value.string_value = "v"
    for number, value in enumerate(rng.sample([*values, array, pairs], rng.randrange(1, 5))):
        holder.add(key=f"key.{number}").value.CopyFrom(value)


def _spans(message: Any, rng: random.Random) -> None:
    for span in message.resource_spans[0].scope_spans[0].spans:
        span.trace_id, span.parent_span_id, span.trace_state, span.flags = SALT, rng.randbytes(8), "a=b", 0x101
        span.attributes.add(key="tailspan.role").value.string_value = "stage"
        span.attributes.add(key="tailspan.stage").value.string_value = "queue"
        span.attributes.add(key="tailspan.busy_ns").value.int_value = 17
        _attributes(span.attributes, rng)
        event = span.events.add(time_unix_nano=time.time_ns(), name="event")
        _attributes(event.attributes, rng)
        link = span.links.add(trace_id=SALT, span_id=rng.randbytes(8), flags=1)
        _attributes(link.attributes, rng)
        span.status.code, span.status.message = 2, "failed"
        span.dropped_attributes_count = 3


def _points(message: Any, rng: random.Random) -> None:
    metrics = message.resource_metrics[0].scope_metrics[0].metrics
    now = time.time_ns()
    metrics[0].gauge.data_points[0].attributes.add(key="salt").value.bytes_value = SALT
    total = metrics.add(name="total", unit="1").sum
    total.is_monotonic, total.aggregation_temporality = True, 2
    _attributes(total.data_points.add(time_unix_nano=now, as_int=-7).attributes, rng)
    point = metrics.add(name="h").histogram.data_points.add(time_unix_nano=now, count=3, sum=2.5, min=0, max=2)
    point.bucket_counts.extend([1, 2])
    point.explicit_bounds.append(1)
    wide = metrics.add(name="e").exponential_histogram.data_points.add(time_unix_nano=now, count=3, scale=2)
    wide.positive.bucket_counts.extend([1, 2])
    summary = metrics.add(name="s").summary.data_points.add(time_unix_nano=now, count=3, sum=2.5)
    summary.quantile_values.add(quantile=0.5, value=1)


def _records(message: Any, rng: random.Random) -> None:
    for record in message.resource_logs[0].scope_logs[0].log_records:
        record.trace_id, record.span_id, record.flags, record.event_name = SALT, rng.randbytes(8), 1, "event"
        record.observed_time_unix_nano, record.severity_text = time.time_ns(), "INFO"
        _attributes(record.attributes, rng)
