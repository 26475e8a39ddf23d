"""Exporters that say once that they fail, and count it.

The standard exporters log every attempt, with a traceback for some errors: a line every few seconds for as long as an
endpoint is away. Here the first failure is one warning with the exporter's own reason, the next success one line, and
what repeats is only counted. TAILSPAN_LOG_LEVEL=DEBUG shows every attempt.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from tailspan.agent.span import Span, readable

logger = logging.getLogger("tailspan.agent")
_EXPORTERS = logging.getLogger("opentelemetry.exporter")

DESTINATIONS = {"grpc": "OTLP/gRPC", "http/protobuf": "OTLP/HTTP"}

REPEAT_S = 600.0
"""An endpoint that comes and goes is a warning again after this time."""

REFUSED = frozenset({"INVALID_ARGUMENT", "400", "413", "422"})
"""gRPC codes and HTTP statuses that say: these very data are bad. Sending them again cannot help."""


class _LastWords(logging.Handler):
    """Keeps the last line that the standard exporters log while it is used as a context manager, in its thread."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.words: frozenset[str] = frozenset()
        self._thread = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message and its arguments, among which is the status code."""
        if record.thread != self._thread:
            return
        arguments = record.args if isinstance(record.args, tuple) else ()
        if self.text and len(arguments) < 2:
            return  # "gave up" says less than the line before it
        self.text = (record.getMessage().splitlines() or [""])[0]
        self.words = frozenset(str(getattr(argument, "name", argument)) for argument in arguments)

    def __enter__(self) -> None:
        self.text, self.words, self._thread = "", frozenset(), threading.get_ident()
        _EXPORTERS.addHandler(self)

    def __exit__(self, *_: object) -> None:
        _EXPORTERS.removeHandler(self)


class Trouble:
    """The state of one destination."""

    def __init__(self, signal: str, destination: str) -> None:
        """`signal` is spans or metrics."""
        self.failures = 0
        self.refused = False
        self._what = f"{signal} to {destination}"
        self._failing = False
        self._warned_at = -REPEAT_S

    def succeeded(self) -> None:
        """Note an acknowledged export."""
        if self._failing:
            logger.info("exporting %s works again", self._what)
        self._failing = self.refused = False

    def failed(self, reason: str) -> None:
        """Note a failed export; warn if it is news."""
        self.failures += 1
        now = time.monotonic()
        if not self._failing and now - self._warned_at >= REPEAT_S:
            self._warned_at = now
            logger.warning("exporting %s fails and is tried again: %s", self._what, reason)
        self._failing = True


class ReportingSpanExporter(SpanExporter):
    """A span exporter that reports through `Trouble`; never raises."""

    def __init__(self, exporter: SpanExporter, destination: str) -> None:
        self.exporter = exporter
        self.prepare: Callable[[Span], Any] = getattr(exporter, "prepare", readable)
        """Makes of a span what `export` takes."""
        self.trouble = Trouble("spans", destination)
        self._said = _LastWords()
        _silence()

    @property
    def failures(self) -> int:
        """Exports that were not acknowledged."""
        return self.trouble.failures

    @property
    def refused(self) -> bool:
        """Whether the last export failed because of these very spans, so that sending them again cannot help."""
        return self.trouble.refused

    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        """Export a batch of prepared spans."""
        try:
            with self._said:
                done = self.exporter.export(spans) is SpanExportResult.SUCCESS
            reason = self._said.text
        except Exception as error:
            done, reason = False, f"{type(error).__name__}: {error}"
            logger.debug("the span exporter raised", exc_info=True)
        if done:
            self.trouble.succeeded()
            return SpanExportResult.SUCCESS
        self.trouble.refused = bool(self._said.words & REFUSED)
        self.trouble.failed(reason)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """Close the connection."""
        self.exporter.shutdown()


class ReportingMetricExporter(MetricExporter):
    """The same for metrics."""

    def __init__(self, exporter: MetricExporter, destination: str) -> None:
        # The reader takes both preferences from the exporter that it is given.
        super().__init__(exporter._preferred_temporality, exporter._preferred_aggregation)
        self.exporter = exporter
        self.trouble = Trouble("metrics", destination)
        self._said = _LastWords()
        _silence()

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """Export one collection."""
        try:
            with self._said:
                done = self.exporter.export(metrics_data, timeout_millis, **kwargs) is MetricExportResult.SUCCESS
            reason = self._said.text
        except Exception as error:
            done, reason = False, f"{type(error).__name__}: {error}"
            logger.debug("the metric exporter raised", exc_info=True)
        if done:
            self.trouble.succeeded()
            return MetricExportResult.SUCCESS
        self.trouble.failed(reason)
        return MetricExportResult.FAILURE

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Nothing is held back."""
        return self.exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Close the connection."""
        self.exporter.shutdown(timeout_millis, **kwargs)


def _silence() -> None:
    """Keep the exporters' own lines from the agent's log, except at DEBUG, and take every one of them."""
    _EXPORTERS.propagate = logging.getLogger().isEnabledFor(logging.DEBUG)
    for name, logger_ in list(logging.Logger.manager.loggerDict.items()):
        if name.startswith(f"{_EXPORTERS.name}.") and isinstance(logger_, logging.Logger):
            # The SDK's filter lets one of several equal lines pass; the reason of a failure may be in another.
            for each in list(logger_.filters):
                logger_.removeFilter(each)
