"""What the rest of the collector sees of a spool: where requests go in, and how each reader gets them out.

Units: sizes in bytes, `*_ns` in nanoseconds since 1970-01-01 UTC.
Errors: `SpoolFull` asks the sender to come back later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class SpoolFull(Exception):  # noqa: N818 (a state that passes, like queue.Full)
    """The spool takes nothing more now; the sender should try again after `retry_after_s` seconds."""

    def __init__(self, reason: str, retry_after_s: float) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Received:
    """One OTLP request as it came, who sent it (`127.0.0.1:5432`, or empty), and when."""

    payload: bytes
    peer: str
    received_ns: int


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in the spool, before a record."""

    segment: int
    offset: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Requests in the order in which they came, and the place after the last of them."""

    requests: tuple[Received, ...]
    end: Position


class Intake(Protocol):
    """Where receivers put requests."""

    def append(self, payload: bytes, peer: str = "") -> bool:
        """Return once the request is on disk; False if it already was, because its sender sent it again.

        Raises:
            SpoolFull: try again later.
        """

    def submit(self, payload: bytes, peer: str, done: Callable[[Exception | None], None]) -> None:
        """Like `append`, but return at once; `done` is called, from any thread, when `append` would return or raise.

        Raises:
            SpoolFull: try again later; `done` is then not called.
        """


class Cursor(Protocol):
    """One independent reader of a spool; its position survives the process."""

    @property
    def behind_bytes(self) -> int:
        """Bytes that it has not passed yet."""

    @property
    def behind_seconds(self) -> float:
        """Age of the oldest request that it has not passed yet, 0 if there is none."""

    @property
    def skipped_requests(self) -> int:
        """Requests that it will never see, because it was further behind than its bounds allow; since the start."""

    @property
    def skipped_bytes(self) -> int:
        """Bytes of those requests."""

    def wait(self, timeout: float) -> bool:
        """Wait until there is something to read or the spool closes; return whether there is."""

    def next(self, most_bytes: int, after: Position | None = None) -> Chunk | None:
        """Read on from the position or `after`, moving nothing; at least one request however large, None if none."""

    def commit(self, chunk: Chunk) -> None:
        """Move behind a chunk, durably."""
