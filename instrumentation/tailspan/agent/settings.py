"""The settings of the agent: where spans and metrics go, and which requests keep their spans.

In: the environment. Out: `AgentSettings`, checked. Light on purpose: a worker calls `check` before it starts an agent,
and must not load the OpenTelemetry SDK for it.
Errors: a wrong value raises `UserError` that names the variable, the value and what is allowed.
Source: OpenTelemetry specification, "Environment Variable Specification"; endpoints, headers, client certificates and
temporality are read by the exporters themselves.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tailspan.errors import UserError
from tailspan.settings import flag

_OTLP = {"otlp": None, "otlp_proto_grpc": "grpc", "otlp_proto_http": "http/protobuf"}
_PROTOCOLS = ("grpc", "http/protobuf")
_SAMPLERS = {"always_on": 1.0, "always_off": 0.0, "traceidratio": None}
_PROMETHEUS_PORT = 9464


@dataclass(frozen=True, slots=True)
class Head:
    """The head sampler. `parent_based`: a caller's W3C flag decides where there is a caller; else `ratio`."""

    parent_based: bool = True
    ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class Keep:
    """The rules of TAILSPAN_KEEP; `slowest` and `ratio` are shares from 0 to 1."""

    errors: bool = False
    aborts: bool = False
    slowest: float = 0.0
    header: bool = False
    ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Everything the agent can be told by the environment.

    traces: (exporter, protocol) of OTEL_TRACES_EXPORTER, default otlp; the protocol is that of
        OTEL_EXPORTER_OTLP_TRACES_PROTOCOL or OTEL_EXPORTER_OTLP_PROTOCOL, default grpc. Empty with
        OTEL_SDK_DISABLED=true, as are the metrics.
    metrics: the same of OTEL_METRICS_EXPORTER; default none, but otlp when OTEL_EXPORTER_OTLP_METRICS_ENDPOINT is set.
    prometheus: (host, port) when OTEL_METRICS_EXPORTER names prometheus or TAILSPAN_PROMETHEUS_PORT is set.
    head: OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG, default parentbased_always_on.
    keep: TAILSPAN_KEEP, default None: every request that the head sampler lets pass.
    metric_interval_s: OTEL_METRIC_EXPORT_INTERVAL, given in milliseconds, default 60 s.
    layer_spans: TAILSPAN_LAYER_SPANS=1 gives each step with the times of its layers a child span for each; default off.
    """

    traces: tuple[tuple[str, str], ...] = (("otlp", "grpc"),)
    metrics: tuple[tuple[str, str], ...] = ()
    prometheus: tuple[str, int] | None = None
    head: Head = Head()
    keep: Keep | None = None
    metric_interval_s: float = 60.0
    layer_spans: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> AgentSettings:
        """Read and check all variables."""
        env = os.environ if environment is None else environment
        head, keep, layer_spans = _head(env), _keep(env), bool(flag(env, "TAILSPAN_LAYER_SPANS"))
        interval_s = _number(env, "OTEL_METRIC_EXPORT_INTERVAL", 60_000.0, "milliseconds") / 1e3
        if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            return cls((), (), None, head, keep, interval_s, layer_spans)
        traces = _exporters(env, "TRACES", "otlp", ())
        metrics = _exporters(env, "METRICS", _metrics_default(env), ("prometheus",))
        otlp = tuple(item for item in metrics if item[0] != "prometheus")
        for signal, exporters in (("TRACES", traces), ("METRICS", otlp)):
            if any(name == "otlp" for name, _ in exporters):
                _check_otlp(env, signal)
        return cls(traces, otlp, _prometheus(env, named=otlp != metrics), head, keep, interval_s, layer_spans)


def check(environment: Mapping[str, str] | None = None) -> None:
    """Raise `UserError` when an agent started with this environment would refuse it; cheap enough for any worker."""
    AgentSettings.from_environment(environment)


def otlp_value(signal: str, setting: str) -> str:
    """Return an OTLP setting of a signal (TRACES, METRICS), or else the common one, of this process' environment."""
    return _value(os.environ, f"OTEL_EXPORTER_OTLP_{signal}_{setting}", f"OTEL_EXPORTER_OTLP_{setting}")[1]


def _value(env: Mapping[str, str], *names: str) -> tuple[str, str]:
    """Return the first of the variables that is set, and its value; the last name and an empty value without one."""
    for name in names:
        value = env.get(name, "").strip()
        if value:
            return name, value
    return names[-1], ""


def _metrics_default(env: Mapping[str, str]) -> str:
    return "otlp" if _value(env, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")[1] else "none"


def _exporters(env: Mapping[str, str], signal: str, default: str, more: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    variable, value = _value(env, f"OTEL_{signal}_EXPORTER")
    found = []
    for name in filter(None, (name.strip() for name in (value or default).split(","))):
        if name in _OTLP:
            found.append(("otlp", _OTLP[name] or _protocol(env, signal)))
        elif name in ("console", *more):
            found.append((name, ""))
        elif name != "none":
            raise UserError(f"{variable}={name!r} is not known", f"Use {', '.join(('otlp', 'console', *more))} or none")
    return tuple(dict.fromkeys(found))


def _protocol(env: Mapping[str, str], signal: str) -> str:
    variable, value = _value(env, f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    if value and value not in _PROTOCOLS:
        raise UserError(f"{variable}={value!r} is not supported", f"Use {' or '.join(_PROTOCOLS)}")
    return value or "grpc"


def _check_otlp(env: Mapping[str, str], signal: str) -> None:
    """Look at what the exporters would fail on, or silently replace, later."""
    for setting in ("COMPRESSION", "TIMEOUT", "CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE"):
        variable, value = _value(env, f"OTEL_EXPORTER_OTLP_{signal}_{setting}", f"OTEL_EXPORTER_OTLP_{setting}")
        if not value:
            continue
        if setting == "COMPRESSION":
            if value.lower() not in ("none", "gzip", "deflate"):
                raise UserError(f"{variable}={value!r} is not known", "Use gzip or none")
        elif setting == "TIMEOUT":
            _number(env, variable, 10.0, "seconds")
        elif not os.access(value, os.R_OK) or not Path(value).is_file():
            raise UserError(f"{variable}={value!r} cannot be read", "Give the path of a PEM file")


def _prometheus(env: Mapping[str, str], *, named: bool) -> tuple[str, int] | None:
    variable, value = _value(env, "TAILSPAN_PROMETHEUS_PORT", "OTEL_EXPORTER_PROMETHEUS_PORT")
    if not named and variable != "TAILSPAN_PROMETHEUS_PORT":
        return None
    if value and not (value.isdecimal() and 0 < int(value) < 65536):
        raise UserError(f"{variable}={value!r} is not a port", f"Use 1 to 65535, for example {_PROMETHEUS_PORT}")
    try:
        installed = find_spec("opentelemetry.exporter.prometheus") is not None
    except ModuleNotFoundError:
        installed = False
    if not installed:
        asked = "OTEL_METRICS_EXPORTER=prometheus" if named else variable
        raise UserError(f"{asked} needs opentelemetry-exporter-prometheus", "Run: pip install 'tailspan[prometheus]'")
    host = _value(env, "OTEL_EXPORTER_PROMETHEUS_HOST")[1] or "127.0.0.1"
    return host, int(value or _PROMETHEUS_PORT)


def _number(env: Mapping[str, str], variable: str, default: float, unit: str) -> float:
    value = env.get(variable, "").strip()
    try:
        number = float(value) if value else default
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise UserError(f"{variable}={value!r} is not a number of {unit}", f"Use more than 0, for example {default:g}")
    return number


def _head(env: Mapping[str, str]) -> Head:
    variable, value = _value(env, "OTEL_TRACES_SAMPLER")
    name = value.lower() or "parentbased_always_on"
    root = name.removeprefix("parentbased_")
    if root not in _SAMPLERS:
        known = [prefix + sampler for sampler in _SAMPLERS for prefix in ("", "parentbased_")]
        raise UserError(f"{variable}={value!r} is not known", f"Use one of: {', '.join(known)}")
    ratio = _SAMPLERS[root]
    if ratio is None:
        argument = env.get("OTEL_TRACES_SAMPLER_ARG", "").strip()
        ratio = _share("OTEL_TRACES_SAMPLER_ARG", argument, "0.1") if argument else 1.0
    return Head(name != root, ratio)


def _keep(env: Mapping[str, str]) -> Keep | None:
    variable, value = _value(env, "TAILSPAN_KEEP")
    if value in ("", "all"):
        return None
    flags: set[str] = set()
    shares = {"slowest": 0.0, "ratio": 0.0}
    for rule in filter(None, (rule.strip() for rule in value.split(","))):
        name, _, share = (part.strip() for part in rule.partition("="))
        if name in ("errors", "aborts", "header") and "=" not in rule:
            flags.add(name)
        elif name in shares:
            shares[name] = _share(f"{variable}: {name}", share, "5%")
        else:
            remedy = "Use all, or some of: errors, aborts, header, slowest=5%, ratio=10%"
            raise UserError(f"{variable}: {rule!r} is not a rule", remedy)
    return Keep("errors" in flags, "aborts" in flags, shares["slowest"], "header" in flags, shares["ratio"])


def _share(what: str, value: str, example: str) -> float:
    """Return a share from 0 to 1, written as `0.05` or `5%`."""
    try:
        share = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise UserError(f"{what}={value!r} is not a share", f"Use 0 to 1 or a percentage, for example {example}")
    return share
