"""A row of the reject table in ClickHouse's RowBinary format.

In: a `Reject`. Out: the columns `sink.REJECTS_COLUMNS`, in that order.
"""

from __future__ import annotations

import struct

from tailspan_collector.framing import write_varint
from tailspan_collector.sink import Reject

_MILLISECONDS, _CODE = struct.Struct("<q"), struct.Struct("<i")


def reject_row(reject: Reject) -> bytes:
    """Encode one row."""
    request = reject.request
    return b"".join(
        (
            _MILLISECONDS.pack(request.received_ns // 1_000_000),
            _string(request.peer.encode()),
            _string(reject.signal.name.encode()),
            _CODE.pack(reject.code),
            _string(reject.reason.encode("utf-8", "replace")),
            _string(reject.token.encode()),
            _string(request.payload),
        )
    )


def _string(value: bytes) -> bytes:
    return write_varint(len(value)) + value
