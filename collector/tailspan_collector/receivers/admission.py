"""The way of a request from a transport into the spool of its signal, the same for gRPC and HTTP.

In: the body as it was sent. Out: durable bytes, or a `Refusal` that says what its sender is to do.
The event loop only waits: decompression runs in threads, and so does the disk. Units: bytes.
"""

from __future__ import annotations

import logging
import time

from tailspan_collector.framing import is_export_request
from tailspan_collector.receivers.decompress import IDENTITY, decompress
from tailspan_collector.receivers.refusals import BadData, NotNow, Refusal
from tailspan_collector.receivers.storing import Storing
from tailspan_collector.receivers.workers import Room, Workers
from tailspan_collector.signals import Signal
from tailspan_collector.spool.interfaces import Intake, SpoolFull

_LOG = logging.getLogger(__name__)
STOPPING, STOPPING_RETRY_S = "the collector is shutting down", 1.0
_BROKEN_RETRY_S = 5.0
_LOG_EVERY_S = 10.0


class Admission:
    """Takes the requests of one signal that come over one transport."""

    def __init__(self, signal: Signal, intake: Intake, limit: int, room: Room, workers: Workers) -> None:
        self.signal = signal
        self.stopping = False
        self._storing = Storing(intake, room)
        self._limit = limit
        self._workers = workers
        self._logged_at = -_LOG_EVERY_S
        self._not_otlp = f"not an OTLP {signal.request.DESCRIPTOR.name} in protobuf"

    async def decompress(self, encoding: str, body: bytes) -> bytes:
        """Return the body decompressed.

        Raises:
            Refusal: it is too large, damaged, or compressed in an unknown way.
        """
        if encoding == IDENTITY:
            return body
        return await self._workers.work(len(body), decompress, encoding, body, self._limit)

    async def store(self, request: bytes, peer: str) -> None:
        """Return once a request in protobuf is durable; an empty one needs no disk.

        Raises:
            Refusal: it is no request, or cannot be taken now.
        """
        if self.stopping:
            raise NotNow(STOPPING, STOPPING_RETRY_S)
        if not is_export_request(request):
            raise BadData(self._not_otlp)
        if not request:
            return
        try:
            await self._storing.store(request, peer)
        except Refusal:
            raise
        except SpoolFull as full:
            raise NotNow(str(full), full.retry_after_s) from full
        except Exception as error:
            # Whether it is durable is not known: the sender must send again, and a resend is recognised.
            self._log(error)
            raise NotNow("the collector cannot store requests now", _BROKEN_RETRY_S) from error

    def _log(self, error: Exception) -> None:
        now = time.monotonic()
        if now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            _LOG.error("cannot take %s: %s: %s", self.signal.name, type(error).__name__, error, exc_info=error)
