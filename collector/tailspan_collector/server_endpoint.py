"""One HTTP(S) endpoint of a ClickHouse server or cluster: its address, the way to log in, and opening a client for it.

In: the settings `clickhouse_*`. Out: clickhouse-connect clients without a session, for any number of threads.
Errors: `Unusable` says which endpoint, why, and what to do: not reachable, not ClickHouse, TLS, login, version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import clickhouse_connect
from clickhouse_connect import common
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError

from tailspan.errors import UserError

OLDEST = (25, 9)  # input_format_protobuf_oneof_presence
CONNECT_TIMEOUT_S = 5
ANSWER_TIMEOUT_S = 120
_PORTS = {"http": 8123, "https": 8443}
# What an error is about stands at the end of its text: the views that were being filled.
common.set_setting("max_error_size", 1 << 16)
_LOGIN_CODES = (192, 193, 194, 497, 516)


class Unusable(UserError, OperationalError):  # noqa: N818 (reads better at every raise)
    """An endpoint cannot be used now: a mistake to a command, a passing trouble to a collector that waits."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How to reach a ClickHouse server or cluster; `url` may hold several endpoints with commas between."""

    url: str = field(repr=False)
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    ca: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    cluster: str = ""
    insert_quorum: int = 0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address; user and password are those of the URL, if it has them."""

    scheme: str
    host: str
    port: int
    path: str = ""
    user: str = ""
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def parse_endpoints(config: ServerConfig) -> tuple[Endpoint, ...]:
    """Read the endpoints, in the order given.

    Raises:
        UserError: an address is malformed, a file is missing, or there are two ways to log in.
    """
    found = tuple(_parse(text.strip()) for text in config.url.split(",") if text.strip())
    if not found:
        raise UserError("no ClickHouse URL is given", "Use http://host:8123, or several with commas between")
    named = config.user or config.password or any(endpoint.user or endpoint.password for endpoint in found)
    if config.token and named:
        raise UserError("both a token and a user or password for ClickHouse are given", "Give one way to log in")
    for path in (config.ca, config.client_cert, config.client_key):
        if path is not None and not path.is_file():
            raise UserError(f"the file {path} for ClickHouse does not exist", "Give a PEM file that this user can read")
    if bool(config.client_cert) != bool(config.client_key):
        raise UserError("a client certificate for ClickHouse needs its key", "Give both files")
    plain = [endpoint for endpoint in found if endpoint.scheme == "http"]
    if plain and (config.ca or config.client_cert):
        raise UserError(f"{plain[0]} does not use TLS, but certificates are given", "Use https://")
    return found


def _parse(text: str) -> Endpoint:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in _PORTS and parts.hostname and parts.port != 0 and not (parts.query or parts.fragment)
    except ValueError:
        usable = False
    if not usable:
        raise UserError(
            f"{_without_login(text)!r} is no ClickHouse URL", "Use http://[user:password@]host:8123 or https://…:8443"
        )
    return Endpoint(
        parts.scheme,
        parts.hostname or "",
        parts.port or _PORTS[parts.scheme],
        parts.path.rstrip("/"),
        unquote(parts.username or ""),
        unquote(parts.password or ""),
    )


def _without_login(text: str) -> str:
    return re.sub(r"//.*@", "//", text)


def open_client(endpoint: Endpoint, config: ServerConfig) -> Client:
    """Log in and check the version.

    Raises:
        Unusable: the reason and what to do.
    """
    try:
        client = clickhouse_connect.get_client(
            interface=endpoint.scheme,
            host=endpoint.host,
            port=endpoint.port,
            proxy_path=endpoint.path,
            settings=session_settings(config),
            autogenerate_session_id=False,
            connect_timeout=CONNECT_TIMEOUT_S,
            send_receive_timeout=ANSWER_TIMEOUT_S,
            query_retries=0,
            compress="gzip",
            **_login(endpoint, config),
            **_tls(endpoint, config),
        )
    except ClickHouseError as error:
        raise _unusable(endpoint, config, error) from error
    version = tuple(int(part) for part in re.findall(r"\d+", str(client.server_version))[:2])
    if version < OLDEST:
        client.close()
        raise Unusable(
            f"ClickHouse at {endpoint} has version {client.server_version}",
            "tailspan needs 25.9 or newer; upgrade the server or use `tailspan up` (embedded)",
        )
    return client


def session_settings(config: ServerConfig) -> dict[str, Any]:
    """Return the settings of every statement: in a cluster an insert ends when all its shards have it."""
    settings: dict[str, Any] = {}
    if config.cluster:
        settings = {"distributed_foreground_insert": 1, "distributed_ddl_task_timeout": ANSWER_TIMEOUT_S // 2}
    if config.insert_quorum:
        settings["insert_quorum"] = config.insert_quorum
    return settings


def _login(endpoint: Endpoint, config: ServerConfig) -> dict[str, Any]:
    if config.token:
        return {"access_token": config.token}
    user, password = endpoint.user or config.user, endpoint.password or config.password
    return {"username": user or None, "password": password}


def _tls(endpoint: Endpoint, config: ServerConfig) -> dict[str, Any]:
    files = {"ca_cert": config.ca, "client_cert": config.client_cert, "client_cert_key": config.client_key}
    found: dict[str, Any] = {name: str(path) for name, path in files.items() if path is not None}
    if config.client_cert:
        # A user without a password logs in by the certificate; else it only opens the connection.
        by_certificate = (endpoint.user or config.user) and not (endpoint.password or config.password)
        found["tls_mode"] = "mutual" if by_certificate else "strict"
    return found


def _unusable(endpoint: Endpoint, config: ServerConfig, error: ClickHouseError) -> Unusable:
    reason, code = root_cause(error), getattr(error, "code", None)
    if code in _LOGIN_CODES:
        who = "the token" if config.token else f"the user {endpoint.user or config.user or 'default'!r}"
        return Unusable(f"ClickHouse at {endpoint} refuses {who} (code {code})", "Check user, password or token")
    if code:
        return Unusable(f"ClickHouse at {endpoint} answers with an error: {reason}", "Correct the server's set-up")
    if "certificate" in reason.lower() or "ssl" in reason.lower():
        return Unusable(f"no TLS connection to ClickHouse at {endpoint}: {reason}", "Give its CA with --clickhouse-ca")
    return Unusable(f"ClickHouse at {endpoint} is not reachable: {reason}", "Check the URL and that the server runs")


def root_cause(error: BaseException) -> str:
    """Return the operating system's or TLS's reason if there is one, else the first line of ClickHouse's."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or getattr(cause, "reason", None) or cause.__context__
        if not isinstance(cause, BaseException):
            break
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
