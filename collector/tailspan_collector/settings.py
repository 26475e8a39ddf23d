"""The collector's settings: one frozen object, validated when it is made.

Precedence: flag > environment variable > default. Sizes in bytes, times in seconds.

    flag            environment variable         default
    --data          TAILSPAN_DATA                ./.tailspan
    --host          TAILSPAN_HOST                127.0.0.1
    --otlp-port     TAILSPAN_OTLP_PORT           4317         0 = any free port
    --http-port     TAILSPAN_HTTP_PORT           8123         0 = any free port; only `tailspan up`
    --clickhouse    TAILSPAN_CLICKHOUSE_URL                   only `tailspan collector`
    --max-request   TAILSPAN_MAX_REQUEST_BYTES   64 MiB       after decompression
    --max-spool     TAILSPAN_MAX_SPOOL_BYTES     4 GiB        then senders are asked to wait
    --batch-bytes   TAILSPAN_BATCH_BYTES         16 MiB       largest insert
    --batch-seconds TAILSPAN_BATCH_SECONDS       1            longest wait before an insert

Errors: `UserError` names the setting, its value and what is allowed.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from tailspan.errors import UserError

MIB = 1024 * 1024
DEFAULT_DATA = Path(".tailspan")


@dataclass(frozen=True, slots=True)
class Settings:
    """What one collector process is to do."""

    data: Path = DEFAULT_DATA
    host: str = "127.0.0.1"
    otlp_port: int = 4317
    http_port: int = 8123
    clickhouse_url: str | None = None
    max_request_bytes: int = 64 * MIB
    max_spool_bytes: int = 4096 * MIB
    batch_bytes: int = 16 * MIB
    batch_seconds: float = 1.0

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            UserError: a value is outside what is allowed.
        """
        for flag, port in (("--otlp-port", self.otlp_port), ("--http-port", self.http_port)):
            if not 0 <= port <= 65535:
                raise UserError(f"{flag} is {port}", "Use 1 to 65535, or 0 for any free port")
        if self.otlp_port == self.http_port != 0 and self.clickhouse_url is None:
            raise UserError(f"--otlp-port and --http-port are both {self.otlp_port}", "Give each its own port")
        for flag, size, least in (
            ("--max-request", self.max_request_bytes, 1024),
            ("--batch-bytes", self.batch_bytes, 1024),
            ("--max-spool", self.max_spool_bytes, MIB),
        ):
            if size < least:
                raise UserError(f"{flag} is {size} bytes", f"Use at least {least} bytes")
        if not 0 < self.batch_seconds <= 60:
            raise UserError(f"--batch-seconds is {self.batch_seconds}", "Use more than 0, at most 60")

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine can reach the ports."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"
