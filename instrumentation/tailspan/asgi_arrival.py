"""When the bytes of a request reached this host, although the event loop was too busy to read them.

In: the transport of a connection whose request has just been read. Out: a time between the arrival and now.
Units: monotonic ns. Linux knows the tick in which a TCP socket last received data; the end of that tick is returned, so
that the answer is at most one tick (1 to 10 ms) later than the arrival, and earlier only by as much as ticks come late:
nothing on a healthy machine, some ms where the hypervisor takes the CPU away. Elsewhere it is now.
Source: `tcpi_last_data_recv` of `struct tcp_info`, tcp(7); ticks are those of CLOCK_MONOTONIC_COARSE, clock_gettime(2).
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from typing import Any

from tailspan.recorder import now_ns

_CLOCK_MONOTONIC_COARSE = 6
_LAST_DATA_RECEIVED_OFFSET = 52
_TCP_INFO_BYTES = _LAST_DATA_RECEIVED_OFFSET + 4


def _tick_ns() -> int:
    if sys.platform != "linux":
        return 0
    try:
        return round(time.clock_getres(_CLOCK_MONOTONIC_COARSE) * 1e9)
    except OSError:
        return 0


_TICK_NS = _tick_ns()


def arrival_ns(transport: Any) -> int:
    """Return when the newest data of the connection arrived, or now where nobody knows."""
    now = now_ns()
    if not _TICK_NS:
        return now
    try:
        connection = transport.get_extra_info("socket")
        information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        idle_ms: int
        (idle_ms,) = struct.unpack_from("=I", information, _LAST_DATA_RECEIVED_OFFSET)
    except (AttributeError, OSError, struct.error):  # no TCP socket, or a transport that hides it
        return now
    # On a machine that is short of CPU ticks come late: how late the present one is tells best how late that one was.
    since_tick_ns = now - time.clock_gettime_ns(_CLOCK_MONOTONIC_COARSE)
    return max(1, now - max(0, idle_ms * 1_000_000 + min(0, since_tick_ns - _TICK_NS)))
