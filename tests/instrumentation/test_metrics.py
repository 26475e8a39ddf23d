"""What the agent measures, seen by a real OTLP endpoint."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tailspan.agent.counters import Counters
from tailspan.agent.settings import AgentSettings, Keep
from tests.support.finished import MS, Box, finished, finished_step, pipeline
from tests.support.otlp_endpoints import GrpcEndpoint, points


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[GrpcEndpoint]:
    """A running OTLP/gRPC endpoint that is the agent's destination of metrics."""
    with GrpcEndpoint() as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", running.endpoint)
        yield running


def only(metric: Any) -> tuple[dict[str, Any], Any]:
    """Return the attributes and data of the only point of a metric."""
    (found,) = points(metric)
    return found


def test_a_request_becomes_the_histograms_of_the_conventions(endpoint: GrpcEndpoint) -> None:
    """Duration 100 ms, first token 40 ms after arrival, (100 - 40) / (3 - 1) ms a token, in the published buckets."""
    line = pipeline()
    line.emit([finished()], [])
    line.close()
    metrics = endpoint.received.latest
    wanted = {
        "gen_ai.server.request.duration": (0.1, [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24,
                                                 20.48, 40.96, 81.92]),
        "gen_ai.server.time_to_first_token": (0.04, [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                                     1.0, 2.5, 5.0, 7.5, 10.0]),
        "gen_ai.server.time_per_output_token": (0.03, [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
                                                       1.0, 2.5]),
    }  # fmt: skip
    for name, (value, bounds) in wanted.items():
        attributes, point = only(metrics[name])
        assert metrics[name].unit == "s"
        assert point.count == 1
        assert point.sum == pytest.approx(value)
        assert list(point.explicit_bounds) == bounds
        assert attributes == {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "smol",
            "gen_ai.provider.name": "transformers",
        }
    tokens = {attributes["gen_ai.token.type"]: point.as_int for attributes, point in points(metrics["tailspan.tokens"])}
    assert tokens == {"input": 17, "output": 3}


def test_stage_durations_add_up_to_the_request(endpoint: GrpcEndpoint) -> None:
    """One value for each stage and one for what no stage covers; together they are the request's 100 ms."""
    line = pipeline()
    line.emit([finished()], [])
    line.close()
    stages = {a["tailspan.stage"]: p for a, p in points(endpoint.received.latest["tailspan.stage.duration"])}
    assert {name: round(point.sum * 1e3) for name, point in stages.items()} == {
        "receive": 2, "tokenize": 3, "dispatch": 1, "queue": 14, "prefill": 20, "decode": 20, "respond": 40,
        "unattributed": 0,
    }  # fmt: skip
    assert sum(point.sum for point in stages.values()) == pytest.approx(0.1)


def test_every_gap_between_tokens_is_counted(endpoint: GrpcEndpoint) -> None:
    """40 requests of 30 tokens have 29 gaps each, all of 10 ms: in the bucket whose upper bound they equal."""
    line = pipeline()
    line.emit([finished(400, tokens=30) for _ in range(40)], [])
    line.close()
    _, point = only(endpoint.received.latest["tailspan.inter_token_latency"])
    assert point.count == 40 * 29
    assert point.sum == pytest.approx(40 * 29 * 0.010)
    filled = {point.explicit_bounds[i]: count for i, count in enumerate(point.bucket_counts) if count}
    assert filled == {0.010: 40 * 29}
    assert (point.min, point.max) == pytest.approx((0.010, 0.010))


def test_steps_are_measured(endpoint: GrpcEndpoint) -> None:
    """Batch size, duration and idle time; a first step has no idle time."""
    line = pipeline()
    line.emit([], [finished_step(0, idle_ns=None), finished_step(1), finished_step(2)])
    line.close()
    metrics = endpoint.received.latest
    found = {name: only(metrics[f"tailspan.step.{name}"])[1] for name in ("requests", "duration", "idle")}
    assert {name: (point.count, round(point.sum, 6)) for name, point in found.items()} == {
        "requests": (3, 24),
        "duration": (3, 0.06),
        "idle": (2, 0.004),
    }


def test_a_request_without_success_counts_only_as_a_duration(endpoint: GrpcEndpoint) -> None:
    """TTFT and TPOT are of successful responses; the duration says what went wrong."""
    line = pipeline()
    line.emit(
        [
            finished(),
            finished(outcome="error", error="RuntimeError"),
            finished(outcome="client_disconnect"),
            finished(outcome="cancelled"),
            finished(error="422"),
        ],
        [],
    )
    line.close()
    metrics = endpoint.received.latest
    durations = {a.get("error.type"): p.count for a, p in points(metrics["gen_ai.server.request.duration"])}
    assert durations == {None: 1, "RuntimeError": 1, "client_disconnect": 1, "cancelled": 1, "422": 1}
    assert only(metrics["gen_ai.server.time_to_first_token"])[1].count == 1
    assert only(metrics["gen_ai.server.time_per_output_token"])[1].count == 1


def test_every_request_is_measured_and_exemplars_lead_to_kept_ones(endpoint: GrpcEndpoint) -> None:
    """At a ratio of 5 % the histograms hold all 400 requests, and each exemplar names the trace of an exported span."""
    box, rng = Box(), random.Random(3)
    line = pipeline(AgentSettings(metrics=(("otlp", "grpc"),), keep=Keep(ratio=0.05)), box)
    line.emit([finished(seed=rng) for _ in range(400)], [])
    line.close()
    exported = {span.context.trace_id.to_bytes(16, "big") for span in box.spans}
    assert 5 <= len(exported) <= 40
    for name in ("gen_ai.server.request.duration", "tailspan.stage.duration", "tailspan.inter_token_latency"):
        found = points(endpoint.received.latest[name])
        assert {point.count for _, point in found} == {800 if "token" in name else 400}
        exemplars = [exemplar for _, point in found for exemplar in point.exemplars]
        assert exemplars
        assert {exemplar.trace_id for exemplar in exemplars} <= exported
        assert all(exemplar.span_id and exemplar.time_unix_nano for exemplar in exemplars)


def test_delta_temporality_starts_again_after_each_export(
    endpoint: GrpcEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the standard preference both kinds of histograms send each value once."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "150")
    line = pipeline()
    line.emit([finished()], [])
    endpoint.received.wait("metrics", 2)
    line.emit([finished(), finished()], [])
    time.sleep(0.4)
    line.close()
    for name in ("gen_ai.server.request.duration", "tailspan.inter_token_latency"):
        counts = []
        for message in endpoint.received.metrics:
            for metric in message.resource_metrics[0].scope_metrics[0].metrics:
                if metric.name == name:
                    assert metric.histogram.aggregation_temporality == 1
                    counts += [point.count for _, point in points(metric)]
        assert sum(counts) == (3 if "request" in name else 6)


def test_the_agent_reports_its_own_numbers(endpoint: GrpcEndpoint) -> None:
    """Counters given by the agent are exported as they are at each collection."""
    line = pipeline(counters=lambda: Counters(11, 12, 13, 14, 15, 16))
    line.close()
    own = {n.removeprefix("tailspan.agent."): only(m)[1].as_int for n, m in endpoint.received.latest.items()
           if n.startswith("tailspan.agent.")}  # fmt: skip
    assert own == {"records": 11, "records_dropped": 12, "requests_dropped": 13, "spans_exported": 14,
                   "spans_dropped": 15, "export_failures": 16}  # fmt: skip


def test_an_agent_that_tells_nothing_still_reports_its_outboxes(endpoint: GrpcEndpoint) -> None:
    """Without a function of its own, exported and dropped spans come from the outboxes."""
    line = pipeline(None, Box(), Box())
    line.close()
    latest = endpoint.received.latest
    assert only(latest["tailspan.agent.spans_exported"])[1].as_int == 10
    assert only(latest["tailspan.agent.spans_dropped"])[1].as_int == 2


def test_invented_model_names_cannot_grow_the_metrics(endpoint: GrpcEndpoint) -> None:
    """A client may ask for any model; after 100 names the rest share one."""
    line = pipeline()
    line.emit([finished(model=f"m{i}") for i in range(500)], [])
    line.close()
    found = {a["gen_ai.request.model"]: p.count for a, p in points(
        endpoint.received.latest["gen_ai.server.request.duration"])}  # fmt: skip
    assert len(found) == 101
    assert found["_OTHER"] == 400


def test_metrics_are_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our collector takes traces only, so the default sends none; OTEL_SDK_DISABLED wins over everything."""
    assert AgentSettings.from_environment({}).metrics == ()
    assert AgentSettings.from_environment({"OTEL_METRICS_EXPORTER": "otlp"}).metrics == (("otlp", "grpc"),)
    off = AgentSettings.from_environment({"OTEL_METRICS_EXPORTER": "otlp,prometheus", "OTEL_SDK_DISABLED": "true"})
    assert (off.metrics, off.prometheus, off.traces) == ((), None, ())
    line = pipeline(off)
    line.emit([finished()], [finished_step(0)])
    assert line._metrics is None


def test_a_stage_in_two_parts_is_one_value(endpoint: GrpcEndpoint) -> None:
    """An eviction splits decode; its two parts are one duration, and `preempted` is one of its own."""
    item = finished(200, tokens=3)
    first = item.request.memberships[0]
    first.leave_step, first.leave_ns = 1, item.request.first_token_ns + 10 * MS if item.request.first_token_ns else 0
    item.request.memberships.append(type(first)(2, (first.leave_ns or 0) + 30 * MS, 0))
    item.request.finish_ns = (first.leave_ns or 0) + 50 * MS
    line = pipeline()
    line.emit([item], [])
    line.close()
    stages = {a["tailspan.stage"]: p for a, p in points(endpoint.received.latest["tailspan.stage.duration"])}
    assert stages["decode"].count == 1
    assert stages["decode"].sum == pytest.approx(0.03)
    assert stages["preempted"].sum == pytest.approx(0.03)
