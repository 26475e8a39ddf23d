"""The agent's settings: what is refused, and with which words."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tailspan.agent.settings import AgentSettings, Head, Keep, check
from tailspan.errors import UserError


def settings(**environment: str) -> AgentSettings:
    """Return the settings of these variables alone."""
    return AgentSettings.from_environment(environment)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("TAILSPAN_KEEP", "errors,slowest", "TAILSPAN_KEEP: slowest='' is not a share"),
        ("TAILSPAN_KEEP", "eror", "TAILSPAN_KEEP: 'eror' is not a rule"),
        ("TAILSPAN_KEEP", "ratio=120%", "TAILSPAN_KEEP: ratio='120%' is not a share"),
        ("TAILSPAN_KEEP", "errors=1", "TAILSPAN_KEEP: 'errors=1' is not a rule"),
        ("OTEL_TRACES_SAMPLER", "sometimes", "OTEL_TRACES_SAMPLER='sometimes' is not known"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "OTEL_TRACES_EXPORTER='zipkin' is not known"),
        ("OTEL_METRICS_EXPORTER", "statsd", "OTEL_METRICS_EXPORTER='statsd' is not known"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "OTEL_EXPORTER_OTLP_PROTOCOL='http/json' is not supported"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "x", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL='x' is not supported"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "OTEL_EXPORTER_OTLP_COMPRESSION='zstd' is not known"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "OTEL_EXPORTER_OTLP_TIMEOUT='soon' is not a number of seconds"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/ca.pem", "OTEL_EXPORTER_OTLP_CERTIFICATE='/no/ca.pem' cannot be read"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "-5", "OTEL_METRIC_EXPORT_INTERVAL='-5' is not a number of milliseconds"),
        ("TAILSPAN_PROMETHEUS_PORT", "http", "TAILSPAN_PROMETHEUS_PORT='http' is not a port"),
        ("TAILSPAN_LAYER_SPANS", "few", "TAILSPAN_LAYER_SPANS='few' is not a switch"),
    ],
)
def test_a_wrong_value_is_one_error_that_names_the_variable(variable: str, value: str, message: str) -> None:
    """The error says the variable, the value and what is allowed."""
    with pytest.raises(UserError) as caught:
        check({variable: value})
    assert caught.value.what.startswith(message)
    assert caught.value.remedy


def test_a_wrong_ratio_is_an_error_and_a_percentage_is_not() -> None:
    """OTEL_TRACES_SAMPLER_ARG counts where the sampler takes one; shares may be written either way."""
    with pytest.raises(UserError, match="OTEL_TRACES_SAMPLER_ARG='2'"):
        settings(OTEL_TRACES_SAMPLER="traceidratio", OTEL_TRACES_SAMPLER_ARG="2")
    assert settings(OTEL_TRACES_SAMPLER="always_on", OTEL_TRACES_SAMPLER_ARG="2").head == Head(parent_based=False)
    assert settings(TAILSPAN_KEEP="slowest=5%, ratio=0.1").keep == Keep(slowest=0.05, ratio=0.1)
    assert settings(TAILSPAN_KEEP="all").keep is None


def test_layer_spans_are_switched_on() -> None:
    """Also where nothing is exported over OTLP."""
    assert settings().layer_spans is False
    assert settings(TAILSPAN_LAYER_SPANS="1").layer_spans is True
    assert settings(TAILSPAN_LAYER_SPANS="on", OTEL_SDK_DISABLED="true").layer_spans is True


def test_checking_the_settings_does_not_load_the_sdk() -> None:
    """A worker may check them before it starts an agent."""
    code = (
        "import sys; from tailspan.agent.settings import check; check({'TAILSPAN_PROMETHEUS_PORT': '9464'})\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'grpc', 'prometheus'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    assert done.stdout.strip() == "[]"
