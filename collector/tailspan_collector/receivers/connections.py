"""One HTTP/1.1 connection: uvicorn's, with limits for senders that are slow, idle, or too many.

What uvicorn has: flow control, bounded headers, an idle limit between requests. What is added: a limit for the time
until the headers are complete, counted from the first byte whatever trickles in after it; a limit for the number of
connections; `google.rpc.Status` for what is no HTTP.
Units: seconds. Source: uvicorn `protocols/http/h11_impl.py`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from tailspan_collector.receivers.refusals import BadData, NotNow, Refusal, Slow

_LOG = logging.getLogger(__name__)
_LOG.setLevel(logging.ERROR)  # uvicorn logs a line for each request that is no HTTP; any sender could fill the disk
_RETRY_S = 5.0


class Connection(H11Protocol):  # type: ignore[misc]
    """A connection with limits."""

    def __init__(self, config: Config, state: ServerState, most: int, slow_seconds: float) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self.logger = _LOG
        self._most = most
        self._slow_seconds = slow_seconds
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the headers of the first request."""
        super().connection_made(transport)
        if len(self.connections) > self._most:
            self._end(NotNow(f"more than {self._most} connections are open", _RETRY_S))
        else:
            self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        """Take bytes; the time for headers runs on until they are complete."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._patience is None and not self.transport.is_closing():
            self._wait_for_headers()

    def on_response_complete(self) -> None:
        """Go on to the next request, which may have begun to arrive."""
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0] and self._patience is None:
            self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers, which would keep the connection in memory."""
        self._stop_waiting()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, unless the answer to the request has begun."""
        self._end(BadData(msg))

    def _wait_for_headers(self) -> None:
        self._patience = self.loop.call_later(self._slow_seconds, self._too_slow)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _too_slow(self) -> None:
        self._patience = None
        self._end(Slow(f"the headers did not come within {self._slow_seconds:g} seconds"))

    def _end(self, refusal: Refusal) -> None:
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = refusal.status_json()
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            if refusal.retry_after() is not None:
                headers.append(("retry-after", str(refusal.retry_after())))
            for event in (h11.Response(status_code=refusal.http_status, headers=headers), h11.Data(data=body)):
                self.transport.write(self.conn.send(event))
        self.transport.close()
