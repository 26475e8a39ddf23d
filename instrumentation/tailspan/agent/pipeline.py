"""From what became complete in one pass to spans on their way out.

In: finished requests and steps. Out: spans in the outboxes.
"""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import TraceFlags

from tailspan.agent.join import Finished, FinishedStep
from tailspan.agent.ledger import ledger
from tailspan.agent.outbox import Outbox
from tailspan.agent.spans import SpanBuilder


class Pipeline:
    """What happens to every finished request and step of one worker."""

    def __init__(self, builder: SpanBuilder, outboxes: Sequence[Outbox]) -> None:
        """Use the builder's resource and clock for all spans."""
        self.builder = builder
        self.outboxes = outboxes

    def emit(self, requests: Sequence[Finished], steps: Sequence[FinishedStep]) -> None:
        """Queue the spans of everything that a caller samples."""
        spans: list[ReadableSpan] = []
        for account in filter(None, map(ledger, requests)):
            if account.request.flags & TraceFlags.SAMPLED:
                spans += self.builder.request(account)
        spans += [self.builder.step(step) for step in steps]
        self.send(spans)

    def send(self, spans: Sequence[ReadableSpan]) -> None:
        """Queue spans for every destination."""
        for outbox in self.outboxes:
            outbox.put(spans)
