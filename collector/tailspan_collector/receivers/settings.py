"""What the receivers are told; the collector's own settings are validated where they are made.

Units: sizes in bytes, times in seconds; port 0 = any free port.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM; all are read again when they change."""

    cert: Path
    """Certificate chain, the server's own first."""
    key: Path
    """Private key of the certificate."""
    client_ca: Path | None = None
    """Who must have signed a client's certificate (mutual TLS); None = clients need none."""


@dataclass(frozen=True, slots=True)
class ReceiverSettings:
    """One object for both receivers."""

    host: str = "127.0.0.1"
    grpc_port: int = 4317
    http_port: int = 4318
    tls: Tls | None = None
    tokens_file: Path | None = None
    """Accepted bearer tokens; None = everybody may send."""
    cors_origins: tuple[str, ...] = ()
    """Web origins that may send from a browser; `*` in one stands for any letters."""
    max_request_bytes: int = 64 * _MIB
    """Largest request, before and after decompression."""
    max_waiting_bytes: int = 512 * _MIB
    """Requests of one receiver that are in memory until they are durable; senders beyond it are asked to wait."""
    max_connections: int = 1024
    slow_seconds: float = 10.0
    """For a TLS handshake, the headers, or the body of a request; OTLP exporters give up after 10 seconds."""
    idle_seconds: float = 300.0
    """After it a connection without a request is closed."""
