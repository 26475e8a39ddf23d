"""From what became complete in one pass to spans on their way out, and to metrics.

In: finished requests and steps. Out: measurements of all of them, and the spans of those that sampling keeps.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from functools import partial

from tailspan.agent.counters import Counters, of_outboxes
from tailspan.agent.join import Finished
from tailspan.agent.ledger import Ledger, ledger
from tailspan.agent.metrics import Metrics
from tailspan.agent.outbox import Outbox
from tailspan.agent.readers import readers
from tailspan.agent.sampling import Sampler
from tailspan.agent.settings import AgentSettings
from tailspan.agent.span import Span
from tailspan.agent.spans import SpanBuilder
from tailspan.agent.steps import FinishedStep
from tailspan.guard import Guard

_GUARD = Guard("agent.metrics")
CLOSE_S = 5.0


class Pipeline:
    """What happens to every finished request and step of one worker."""

    def __init__(
        self, builder: SpanBuilder, outboxes: Sequence[Outbox], settings: AgentSettings | None = None,
        counters: Callable[[], Counters] | None = None,
    ) -> None:  # fmt: skip
        """Use the builder's resource and clock for all spans; settings default to the environment's.

        `counters` tells the agent's own numbers, from any thread; by default only what the outboxes know.
        """
        settings = settings if settings is not None else AgentSettings.from_environment()
        self.builder = builder
        self.outboxes = outboxes
        self._sampler = Sampler(settings.head, settings.keep)
        self._layer_spans = settings.layer_spans
        self._metrics: Metrics | None = None
        if found := readers(settings):
            self._metrics = Metrics(builder.resource, found, counters or partial(of_outboxes, outboxes))
            atexit.register(self.close)

    def emit(self, requests: Sequence[Finished], steps: Sequence[FinishedStep]) -> None:
        """Measure everything, and queue the spans of what is kept."""
        spans: list[Span] = []
        for account in filter(None, map(ledger, requests)):
            spans += self._request(account)
        for step in steps:
            if self._metrics is not None:
                with _GUARD:
                    self._metrics.step(step)
            has_layers = step.layers is not None
            weight = self._sampler.step(step.step, has_layers=has_layers) if self.outboxes else 0.0
            if weight:
                span = self.builder.step(step, weight)
                spans.append(span)
                if has_layers and self._layer_spans:
                    spans += self.builder.layers(span, step)
        self.send(spans)

    def send(self, spans: Sequence[Span]) -> None:
        """Queue spans for every destination."""
        for outbox in self.outboxes:
            outbox.put(spans)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Export the metrics a last time; the outboxes are their owner's to close. A second call does nothing."""
        metrics, self._metrics = self._metrics, None
        if metrics is not None:
            atexit.unregister(self.close)
            with _GUARD:
                metrics.close(timeout_s)

    def _request(self, account: Ledger) -> list[Span]:
        weight = self._sampler.request(account) if self.outboxes else 0.0
        if self._metrics is not None:
            with _GUARD:
                self._metrics.request(account, kept=weight > 0)
        return self.builder.request(account, weight) if weight else []
