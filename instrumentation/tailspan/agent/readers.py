"""The metric readers that the settings ask for: OTLP, console, and a Prometheus page.

Errors: a Prometheus port that is taken is one warning, and the agent goes on without that page.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from opentelemetry.sdk.metrics.export import (
    ConsoleMetricExporter,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
)

from tailspan.agent import instruments
from tailspan.agent.otlp import metric_exporter
from tailspan.agent.pooled import Pool
from tailspan.agent.reporting import DESTINATIONS, ReportingMetricExporter
from tailspan.agent.settings import AgentSettings

logger = logging.getLogger("tailspan.agent")

_TEMPORALITY = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"


class PooledPeriodicReader(PeriodicExportingMetricReader):
    """Exports the SDK's metrics and those of a pool every so often."""

    def __init__(self, exporter: ReportingMetricExporter, pool: Pool, interval_s: float) -> None:
        """Start the exporting thread."""
        self._pool = pool
        super().__init__(exporter, export_interval_millis=interval_s * 1e3)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        super()._receive_metrics(self._pool.added_to(metrics_data), timeout_millis, **kwargs)


def readers(settings: AgentSettings) -> list[tuple[MetricReader, Pool]]:
    """Return each reader with the pool that it reads; none when metrics are off."""
    found: list[tuple[MetricReader, Pool]] = []
    for name, protocol in settings.metrics:
        delta = name == "otlp" and os.environ.get(_TEMPORALITY, "").strip().lower() in ("delta", "lowmemory")
        pool = Pool(instruments.POOLED, delta=delta)
        found.append((PooledPeriodicReader(_exporter(name, protocol), pool, settings.metric_interval_s), pool))
    if settings.prometheus is not None:
        pool = Pool(instruments.POOLED)
        page = _prometheus(*settings.prometheus, pool)
        if page is not None:
            found.append((page, pool))
    return found


def _exporter(name: str, protocol: str) -> ReportingMetricExporter:
    if name == "console":
        return ReportingMetricExporter(ConsoleMetricExporter(), "console")
    return ReportingMetricExporter(metric_exporter(protocol), DESTINATIONS[protocol])


def _prometheus(host: str, port: int, pool: Pool) -> MetricReader | None:
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        logger.warning("no Prometheus page on %s:%d: %s; set TAILSPAN_PROMETHEUS_PORT", host, port, error.strerror)
        return None

    class PooledPage(PrometheusMetricReader):
        def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
            super()._receive_metrics(pool.added_to(metrics_data), timeout_millis, **kwargs)

        def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
            server.shutdown()
            server.server_close()
            thread.join(timeout_millis / 1e3)
            super().shutdown(timeout_millis, **kwargs)

    return PooledPage(registry=registry, scope_info_enabled=False)
