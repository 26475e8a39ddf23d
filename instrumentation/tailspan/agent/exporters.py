"""The standard OpenTelemetry span exporters, chosen by the standard variables.

Source: OpenTelemetry specification, "Environment Variable Specification" and "Protocol Exporter".
Errors: an unknown exporter or protocol raises `UserError` that names the variable.
"""

from __future__ import annotations

import os

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import ConsoleSpanExporter

from tailspan import attributes as attr
from tailspan.agent.otlp import span_exporter
from tailspan.agent.reporting import DESTINATIONS, ReportingSpanExporter
from tailspan.agent.settings import AgentSettings


def exporters(settings: AgentSettings | None = None) -> list[ReportingSpanExporter]:
    """Return the exporters that OTEL_TRACES_EXPORTER names; `otlp` when it is unset, none when tracing is disabled."""
    settings = settings if settings is not None else AgentSettings.from_environment()
    return [_exporter(name, protocol) for name, protocol in settings.traces]


def _exporter(name: str, protocol: str) -> ReportingSpanExporter:
    if name == "console":
        return ReportingSpanExporter(ConsoleSpanExporter(), "console")
    return ReportingSpanExporter(span_exporter(protocol), DESTINATIONS[protocol])


def resource(default_service: str, instance: str) -> Resource:
    """Return the resource of all spans: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over the defaults."""
    found = Resource.create()
    defaults: dict[str, str] = {}
    if str(found.attributes.get(attr.SERVICE_NAME, "")).startswith("unknown_service"):
        defaults[attr.SERVICE_NAME] = default_service
    # The SDK gives every process an id of its own; the instance here is the worker, not the agent beside it.
    configured = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if f"{attr.SERVICE_INSTANCE}=" not in configured:
        defaults[attr.SERVICE_INSTANCE] = instance
    return found.merge(Resource(defaults))
