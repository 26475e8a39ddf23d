"""The collector's settings: one frozen object, validated when it is made.

Every field below is a setting; `options.py` makes from it the flag `--otlp-port`, the variable `TAILSPAN_OTLP_PORT` and
the key `otlp_port` of the configuration file. Precedence: flag > environment variable > file > default.

Units: sizes in bytes, times in seconds; port 0 = any free port.
Errors: `UserError` names the setting, its value and what is allowed.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tailspan.errors import UserError

MIB = 1024 * 1024
DEFAULT_DATA = Path(".tailspan")
LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")
_PORTS = ("otlp_port", "otlp_http_port", "http_port", "admin_port")
_LEAST_BYTES = {"max_request_bytes": 1024, "batch_bytes": 1024, "max_spool_bytes": MIB}


def flag(name: str) -> str:
    """Return the flag of a setting."""
    return f"--{name.replace('_', '-')}"


def _setting(default: Any, help_text: str, of: str = "up collector", secret: bool = False) -> Any:
    """Return a field with its help text and the commands that have it; a secret one is never printed."""
    return field(default=default, repr=not secret, metadata={"help": help_text, "of": of.split()})


@dataclass(frozen=True, slots=True)
class Settings:
    """What one collector process is to do."""

    data: Path = _setting(DEFAULT_DATA, "folder for everything that is kept")
    host: str = _setting("127.0.0.1", "address to listen on")
    otlp_port: int = _setting(4317, "OTLP/gRPC port")
    otlp_http_port: int = _setting(4318, "OTLP/HTTP port")
    http_port: int = _setting(8123, "read-only ClickHouse HTTP port", of="up")
    admin_port: int = _setting(13133, "port of /healthz, /readyz and /metrics")
    tls_cert: Path | None = _setting(None, "certificate chain (PEM); the OTLP ports then speak TLS only")
    tls_key: Path | None = _setting(None, "private key of --tls-cert (PEM)")
    tls_client_ca: Path | None = _setting(None, "CA (PEM) that must have signed the client's certificate (mutual TLS)")
    tokens_file: Path | None = _setting(None, "file with one accepted bearer token a line; read again when it changes")
    cors_origins: str = _setting("", "comma-separated web origins that may send OTLP/HTTP from a browser")
    max_request_bytes: int = _setting(64 * MIB, "largest OTLP request after decompression, bytes")
    max_connections: int = _setting(1024, "open connections a port accepts")
    max_spool_bytes: int = _setting(4096 * MIB, "bytes of a signal that may wait before senders are asked to wait")
    max_spool_seconds: float = _setting(86400.0, "age of waiting data at which senders are asked to wait, seconds")
    batch_bytes: int = _setting(16 * MIB, "largest insert, bytes")
    batch_seconds: float = _setting(1.0, "longest wait before an insert, seconds")
    inserts_in_flight: int = _setting(2, "inserts of a signal that may be under way at once")
    stop_seconds: float = _setting(30.0, "longest time to store what is left when told to stop, seconds")
    clickhouse_url: str | None = _setting(
        None, "ClickHouse endpoints, comma-separated: http(s)://host:port", of="collector"
    )
    clickhouse_user: str = _setting("", "user of ClickHouse", of="collector")
    clickhouse_password: str = _setting(
        "", "password of the user; better given by the variable", of="collector", secret=True
    )
    clickhouse_token: str = _setting("", "access token instead of user and password", of="collector", secret=True)
    clickhouse_ca: Path | None = _setting(None, "CA (PEM) of the ClickHouse server", of="collector")
    clickhouse_cert: Path | None = _setting(None, "client certificate (PEM) for ClickHouse", of="collector")
    clickhouse_key: Path | None = _setting(None, "private key of --clickhouse-cert (PEM)", of="collector")
    cluster: str = _setting("", "name of the ClickHouse cluster; empty = one server", of="collector")
    insert_quorum: int = _setting(0, "replicas that must have an insert; 0 = the server decides", of="collector")
    log_format: str = _setting("text", "log lines as text or json")
    log_level: str = _setting("warning", "least important messages that are logged")

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            UserError: a value is outside what is allowed.
        """
        self._check_ports()
        self._check_amounts()
        self._check_words()
        if bool(self.tls_cert) != bool(self.tls_key):
            given, missing = ("tls_cert", "tls_key") if self.tls_cert else ("tls_key", "tls_cert")
            raise UserError(f"{flag(given)} is given without {flag(missing)}", "Give both files")
        if self.tls_client_ca and not self.tls_cert:
            raise UserError("--tls-client-ca needs TLS", "Give --tls-cert and --tls-key too")
        if self.clickhouse_token and (self.clickhouse_user or self.clickhouse_password):
            raise UserError("--clickhouse-token is given beside a user or password", "Give one way to log in")

    def _check_ports(self) -> None:
        used: dict[int, str] = {}
        for name in _PORTS:
            port = getattr(self, name)
            if not 0 <= port <= 65535:
                raise UserError(f"{flag(name)} is {port}", "Use 1 to 65535, or 0 for any free port")
            if name == "http_port" and self.clickhouse_url is not None:
                continue
            if port and port in used:
                raise UserError(f"{used[port]} and {flag(name)} are both {port}", "Give each its own port")
            used[port] = flag(name)

    def _check_amounts(self) -> None:
        for name, least in _LEAST_BYTES.items():
            if (size := getattr(self, name)) < least:
                raise UserError(f"{flag(name)} is {size} bytes", f"Use at least {least} bytes")
        for name, longest in (("batch_seconds", 60), ("stop_seconds", 3600), ("max_spool_seconds", 366 * 86400)):
            if not 0 < (value := getattr(self, name)) <= longest:
                raise UserError(f"{flag(name)} is {value}", f"Use more than 0, at most {longest}")
        for name, least, most in (
            ("max_connections", 1, 65536),
            ("inserts_in_flight", 1, 64),
            ("insert_quorum", 0, 64),
        ):
            if not least <= (number := getattr(self, name)) <= most:
                raise UserError(f"{flag(name)} is {number}", f"Use {least} to {most}")

    def _check_words(self) -> None:
        for name, words in (("log_format", LOG_FORMATS), ("log_level", LOG_LEVELS)):
            if (word := getattr(self, name)) not in words:
                raise UserError(f"{flag(name)} is {word!r}", f"Use {' or '.join(words)}")

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine can reach the ports."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


NAMES = tuple(item.name for item in fields(Settings))
