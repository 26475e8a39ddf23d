"""Reads destinations from the configuration: `[[forward]]` tables of the TOML file, and URLs of `--forward`.

    [[forward]]
    endpoint = "https://api.example.com"        # grpc, grpcs, http, https, kafka, kafkas
    name = "example"                            # default: the endpoint; names the cursor, so keep it
    protocol = "http/protobuf"                  # only needed for gRPC with http(s)://
    headers = { x-team = "a", authorization = "Bearer ${EXAMPLE_TOKEN}" }
    headers_env = { x-api-key = "EXAMPLE_KEY" } # header = name of an environment variable
    tls = { ca = "ca.pem", certificate = "me.pem", key = "me.key" }
    compression = "gzip"                        # or "none"
    timeout = "10s"                             # of one try
    signals = ["traces"]                        # traces, metrics, logs
    most_behind_bytes = "1GiB"                  # further behind, the oldest requests are skipped, and counted
    most_behind_seconds = "24h"
    requests_in_flight = 4
    sasl = { mechanism = "PLAIN", username = "u", password = "${KAFKA_PASSWORD}" }
    sample = { errors = true, slower_than = "2s", share = 0.05, settle = "10s" }

Errors: `UserError` names the destination, the key, the value and what is allowed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tailspan.errors import UserError
from tailspan_collector.forward.destination import HTTP, SCHEMES, Destination, Login, Sample, Tls
from tailspan_collector.signals import SIGNALS, TRACES, Signal

KEYS = (
    *("name", "endpoint", "protocol", "headers", "headers_env", "tls", "compression", "timeout", "signals"),
    *("most_behind_bytes", "most_behind_seconds", "requests_in_flight", "sasl", "sample"),
)
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_VARIABLE = re.compile(r"\$\{([^}]*)\}")


def destinations(tables: Iterable[Mapping[str, Any]], urls: Iterable[str] = ()) -> tuple[Destination, ...]:
    """Return all destinations of a collector.

    Raises:
        UserError: one is wrong, or two have one name.
    """
    found = [*map(from_table, tables), *map(from_url, urls)]
    names = [destination.name for destination in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two forward destinations have the name {name!r}", "Give each a 'name' of its own")
    return tuple(found)


def from_url(url: str) -> Destination:
    """Return the destination of `--forward URL`.

    Raises:
        UserError: it is none.
    """
    return from_table({"endpoint": url})


def from_table(table: Mapping[str, Any]) -> Destination:
    """Return the destination of a `[[forward]]` table.

    Raises:
        UserError: a key or a value is not allowed, or an environment variable is not set.
    """
    endpoint = table.get("endpoint")
    if not isinstance(endpoint, str) or not endpoint:
        raise UserError("a forward destination has no 'endpoint'", 'Give one, such as endpoint = "grpc://host:4317"')
    reader = _Table(str(table.get("name") or _default_name(endpoint)), table, KEYS)
    scheme = endpoint.partition("://")[0]
    return Destination(
        name=reader.name,
        endpoint=endpoint,
        protocol=reader.text("protocol", SCHEMES.get(scheme, (HTTP, False))[0]),
        headers=_headers(reader),
        tls=_tls(reader),
        compression=reader.text("compression", "gzip"),
        timeout_s=reader.number("timeout", 10.0, _SECONDS),
        signals=_signals(reader),
        most_behind_bytes=int(reader.number("most_behind_bytes", 1 << 30, _BYTES)),
        most_behind_seconds=reader.number("most_behind_seconds", 86_400, _SECONDS),
        requests_in_flight=int(reader.number("requests_in_flight", 4, {})),
        login=_login(reader),
        sample=_sample(reader),
    )


class _Table:
    """A TOML table whose values are checked as they are read."""

    def __init__(self, name: str, values: Mapping[str, Any], keys: Iterable[str], prefix: str = "") -> None:
        self.name, self._values, self._prefix = name, values, prefix
        for key in values:
            if key not in keys:
                raise UserError(
                    f"forward destination {name!r}: unknown key {prefix + key!r}", f"Allowed: {', '.join(keys)}"
                )

    def error(self, key: str, allowed: str) -> UserError:
        """Return the error of a value of the wrong kind; secrets are not shown."""
        shown = "" if key in ("password", "headers") else f" is {self._values[key]!r}"
        return UserError(f"forward destination {self.name!r}: {self._prefix + key!r}{shown}", f"Use {allowed}")

    def text(self, key: str, default: str) -> str:
        """Return a string with `${NAME}` replaced."""
        value = self._values.get(key, default)
        if not isinstance(value, str):
            raise self.error(key, "a string")
        return self.expand(key, value)

    def expand(self, key: str, value: str) -> str:
        """Replace `${NAME}` by environment variables."""
        return _VARIABLE.sub(lambda match: self.variable(key, match[1]), value)

    def variable(self, key: str, name: str) -> str:
        """Return the value of an environment variable, without white space around it."""
        if name not in os.environ:
            raise UserError(
                f"forward destination {self.name!r}: {self._prefix + key!r} wants the environment variable {name!r}",
                "Set it where the collector starts",
            )
        return os.environ[name].strip()

    def number(self, key: str, default: float, units: Mapping[str, float]) -> float:
        """Return a number, or a string of a number and a unit."""
        value = self._values.get(key, default)
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value) if isinstance(value, str) else None
        if match is not None and match[2] in units:
            return float(match[1]) * units[match[2]]
        if isinstance(value, bool) or not isinstance(value, int | float):
            example = f", or text with a unit of {', '.join(units)}" if units else ""
            raise self.error(key, f"a number{example}")
        return value

    def flag(self, key: str) -> bool:
        """Return true or false."""
        value = self._values.get(key, False)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def has(self, key: str) -> bool:
        """Whether the key is given."""
        return key in self._values

    def strings(self, key: str) -> dict[str, str]:
        """Return a table of strings."""
        value = self._values.get(key, {})
        if not isinstance(value, Mapping) or not all(isinstance(item, str) for item in value.values()):
            raise self.error(key, "a table of strings")
        return dict(value)

    def table(self, key: str, keys: Iterable[str]) -> _Table:
        """Return a table within the table."""
        value = self._values.get(key, {})
        if not isinstance(value, Mapping):
            raise self.error(key, f"a table with {', '.join(keys)}")
        return _Table(self.name, value, keys, f"{key}.")

    def list(self, key: str, default: list[str]) -> list[str]:
        """Return a list of strings."""
        value = self._values.get(key, default)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, "a list of strings")
        return value


def _default_name(endpoint: str) -> str:
    scheme, _, rest = endpoint.partition("://")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{scheme}-{rest.rpartition('@')[2]}").strip("-")[:80]


def _headers(reader: _Table) -> tuple[tuple[str, str], ...]:
    headers = {name.lower(): reader.expand("headers", text) for name, text in reader.strings("headers").items()}
    for name, variable in reader.strings("headers_env").items():
        headers[name.lower()] = reader.variable("headers_env", variable)
    return tuple(headers.items())


def _signals(reader: _Table) -> tuple[Signal, ...]:
    names = reader.list("signals", [TRACES.name])
    for name in names:
        if name not in {signal.name for signal in SIGNALS}:
            raise reader.error("signals", f"some of {', '.join(signal.name for signal in SIGNALS)}")
    return tuple(signal for signal in SIGNALS if signal.name in names)


def _tls(reader: _Table) -> Tls:
    files = reader.table("tls", ("ca", "certificate", "key"))
    paths = {key: Path(files.text(key, "")) if files.has(key) else None for key in ("ca", "certificate", "key")}
    return Tls(**paths)


def _login(reader: _Table) -> Login | None:
    if not reader.has("sasl"):
        return None
    login = reader.table("sasl", ("mechanism", "username", "password"))
    return Login(login.text("mechanism", "PLAIN"), login.text("username", ""), login.text("password", ""))


def _sample(reader: _Table) -> Sample | None:
    if not reader.has("sample"):
        return None
    rules = reader.table("sample", ("errors", "slower_than", "share", "settle"))
    return Sample(
        errors=rules.flag("errors"),
        slower_than_s=rules.number("slower_than", 0, _SECONDS) if rules.has("slower_than") else None,
        share=rules.number("share", 0, {}),
        settle_s=rules.number("settle", 10, _SECONDS),
    )
