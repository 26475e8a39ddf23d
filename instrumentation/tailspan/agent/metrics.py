"""Every finished request and step as OpenTelemetry metrics, whether its spans are kept or not.

In: ledgers and steps from the agent's reading thread. Out: the readers (OTLP, console, Prometheus).
The three `gen_ai.server.*` histograms are instruments of the SDK; what comes by the dozen goes through `pooled`.
Exemplars carry the trace of a request whose spans are kept, so that every exemplar can be opened.
Cardinality: a label takes at most `MAX_VALUES` different values, further ones read `_OTHER`, because a client may put
any model name into its request.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict

from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from tailspan import attributes as attr
from tailspan.agent import instruments
from tailspan.agent.counters import Counters
from tailspan.agent.ledger import Ledger
from tailspan.agent.pooled import Labels, Pool, Source
from tailspan.agent.steps import FinishedStep
from tailspan.version import __version__

MAX_VALUES = 100
OTHER = "_OTHER"
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class Metrics:
    """The instruments of one worker."""

    def __init__(
        self, resource: Resource, readers: Sequence[tuple[MetricReader, Pool]], counters: Callable[[], Counters]
    ) -> None:
        """`counters` is asked at each collection, from a reader's thread."""
        self._pools = [pool for _, pool in readers]
        self._with_exemplars = os.environ.get("OTEL_METRICS_EXEMPLAR_FILTER", "") != "always_off"
        self._seen: dict[str, set[str]] = {}
        self._tokens: dict[Labels, int] = {}
        views = [
            View(instrument_name=shape.name, aggregation=ExplicitBucketHistogramAggregation(shape.bounds))
            for shape in instruments.GEN_AI
        ]
        self._provider = MeterProvider([reader for reader, _ in readers], resource, views=views, shutdown_on_exit=False)
        meter = self._provider.get_meter(attr.SCOPE_NAME, __version__)
        self._duration, self._first_token, self._per_token = (
            meter.create_histogram(shape.name, unit=shape.unit, description=shape.description)
            for shape in instruments.GEN_AI
        )
        meter.create_observable_counter(
            instruments.TOKENS, [self._observe_tokens], "{token}", "Tokens of finished requests."
        )
        for name, unit in instruments.AGENT_UNITS.items():
            meter.create_observable_counter(
                instruments.AGENT_PREFIX + name, [_observe(counters, name)], unit, f"Of the agent: {name}."
            )

    def request(self, account: Ledger, *, kept: bool) -> None:
        """Measure a finished request; `kept` when its spans are."""
        request = account.request
        span = SpanContext(request.trace_id, request.key, False, _SAMPLED) if kept else None
        labels = self._labels(account)
        error = request.error_type or ("" if request.outcome == "ok" else request.outcome)
        context = set_span_in_context(NonRecordingSpan(span), Context()) if span is not None else Context()
        ended = labels | {attr.ERROR_TYPE: self._bounded(attr.ERROR_TYPE, error)} if error else labels
        self._duration.record(account.e2e_ns / 1e9, ended, context)
        if not error:
            self._successful(account, labels, context)
        model = ((attr.GEN_AI_MODEL, labels[attr.GEN_AI_MODEL]),) if attr.GEN_AI_MODEL in labels else ()
        self._count_tokens(account, model)
        source = (time.time_ns(), span) if span is not None and self._with_exemplars else None
        self._add(account, model, source)

    def step(self, finished: FinishedStep) -> None:
        """Measure one engine step."""
        step, engine, device = finished.step, finished.engine, finished.device
        labels: Labels = ((instruments.PROVIDER, engine.software or "unknown"),)
        if engine.model:
            labels += ((attr.GEN_AI_MODEL, self._bounded(attr.GEN_AI_MODEL, engine.model)),)
        for pool in self._pools:
            with pool.lock:
                histograms = pool.histograms
                histograms[instruments.STEP_DURATION.name].add(labels, (step.end_ns - step.begin_ns,))
                histograms[instruments.STEP_REQUESTS.name].add(labels, (step.requests,))
                if finished.idle_ns is not None:
                    histograms[instruments.STEP_IDLE.name].add(labels, (finished.idle_ns,))
                if device is None:
                    continue
                timed = (*labels, (attr.DEVICE, device.device))
                histograms[instruments.STEP_DEVICE_BUSY.name].add(timed, (device.busy_ns,))
                if finished.device_idle_ns is not None:
                    histograms[instruments.STEP_DEVICE_IDLE.name].add(timed, (finished.device_idle_ns,))

    def close(self, timeout_s: float) -> None:
        """Export a last time and stop the readers."""
        self._provider.shutdown(timeout_millis=timeout_s * 1e3)

    def _successful(self, account: Ledger, labels: dict[str, str], context: Context) -> None:
        first_ns = time_to_first_token_ns(account)
        if first_ns is None:
            return
        self._first_token.record(first_ns / 1e9, labels, context)
        tokens = account.request.attributes.get(attr.GEN_AI_OUTPUT_TOKENS)
        if isinstance(tokens, int) and tokens > 1:
            self._per_token.record((account.e2e_ns - first_ns) / 1e9 / (tokens - 1), labels, context)

    def _labels(self, account: Ledger) -> dict[str, str]:
        operation = account.request.attributes.get(attr.GEN_AI_OPERATION) or "text_completion"
        engine = account.engine
        labels = {
            attr.GEN_AI_OPERATION: self._bounded(attr.GEN_AI_OPERATION, str(operation)),
            instruments.PROVIDER: engine.software if engine is not None and engine.software else "unknown",
        }
        if account.model:
            labels[attr.GEN_AI_MODEL] = self._bounded(attr.GEN_AI_MODEL, account.model)
        return labels

    def _bounded(self, key: str, value: str) -> str:
        seen = self._seen.setdefault(key, set())
        if value not in seen:
            if len(seen) >= MAX_VALUES:
                return OTHER
            seen.add(value)
        return value

    def _count_tokens(self, account: Ledger, model: Labels) -> None:
        for kind, key in (("input", attr.GEN_AI_INPUT_TOKENS), ("output", attr.GEN_AI_OUTPUT_TOKENS)):
            tokens = account.request.attributes.get(key)
            if isinstance(tokens, int) and tokens > 0:
                labels = (*model, (instruments.TOKEN_TYPE, kind))
                self._tokens[labels] = self._tokens.get(labels, 0) + tokens

    def _add(self, account: Ledger, model: Labels, source: Source | None) -> None:
        walls: dict[str, int] = {attr.UNATTRIBUTED: account.unattributed_ns}
        for part in account.stages:
            walls[part.stage] = walls.get(part.stage, 0) + part.end_ns - part.begin_ns
        for pool in self._pools:
            with pool.lock:
                stages = pool.histograms[instruments.STAGE_DURATION.name]
                for stage, wall_ns in walls.items():
                    stages.add((*model, (attr.STAGE, stage)), (wall_ns,), source)
                if account.gaps_ns:
                    pool.histograms[instruments.INTER_TOKEN.name].add(model, account.gaps_ns, source)

    def _observe_tokens(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, dict(labels)) for labels, value in list(self._tokens.items())]


def time_to_first_token_ns(account: Ledger) -> int | None:
    """Return arrival until the engine sampled the first token: receive, tokenize, dispatch, queue and prefill.

    An engine that does not tell is measured at the first body chunk, but only where the answer is streamed: the only
    chunk of any other answer is its last.
    """
    first_ns = account.request.first_token_ns
    if first_ns is not None and account.begin_ns <= first_ns <= account.end_ns:
        return first_ns - account.begin_ns
    return account.ttft_ns if account.request.attributes.get(attr.GEN_AI_STREAM) else None


def _observe(counters: Callable[[], Counters], name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _: [Observation(asdict(counters())[name])]
