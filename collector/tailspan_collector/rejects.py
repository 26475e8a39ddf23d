"""Requests that ClickHouse could not store: reading them from `tailspan.rejects`, and sending them again.

A reject's id is the MD5 of its deduplication token, 32 hex digits. A replay leaves a mark, a span `reject.replayed` of
the trace with that id, which goes the same way as all data: through the collector into `tailspan.traces`. So marks need
no right to write into ClickHouse and no state outside it, and `tailspan trace ID` shows when a reject was replayed.

    1. the mark is sent and must be seen in ClickHouse: the collector and ClickHouse belong together, and nobody else
       replays the same reject at this moment
    2. the payload is sent; if that fails for good, the mark stays, and another try needs --again

So a payload is sent at most once for each mark. Its bytes carry the number of the replay in a protobuf field that
nobody knows: the collector must not take it for a resend of the request that it has, only for its own repetition.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from tailspan.errors import UserError
from tailspan_collector.framing import write_varint
from tailspan_collector.signals import SIGNALS, TRACES, Signal
from tailspan_schemas.migrations import Database

MARK = "reject.replayed"
SEEN_WITHIN_S = 60.0
_SEND_S = 30.0
_NONCE_FIELD = 15999  # of an export request; not assigned, and outside the range that protobuf keeps for itself
_ID = "lower(hex(MD5(batch)))"
_RETRYABLE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.ABORTED})


@dataclass(frozen=True, slots=True)
class Rejected:
    """One row of the reject table; times are UTC."""

    id: str
    rejected_at: str
    received_at: str
    peer: str
    signal: str
    code: int
    reason: str
    size: int
    replays: int
    """How often it was sent again."""
    replayed_at: str
    """When it was last sent again; empty = never."""


def find(
    database: Database, since_s: int = 0, signal: str = "", limit: int = 100, ids: Sequence[str] = ()
) -> list[Rejected]:
    """Return rejects, the newest first; `ids` are whole ids or their beginnings."""
    conditions = [f"rejected_at >= now() - {since_s}"] if since_s else []
    conditions += [f"signal = '{signal}'"] if signal else []
    if ids:
        conditions.append("(" + " or ".join(f"startsWith({_ID}, '{checked(text)}')" for text in ids) + ")")
    rows = database.rows(
        f"select {_ID} as id, rejected_at, received_at, hex(peer), signal, code, hex(reason), length(payload) "  # noqa: S608 (checked)
        f"from tailspan.rejects where {' and '.join(conditions) or '1'} "
        f"order by rejected_at desc, id limit 1 by id limit {limit}"
    )
    marks = _marks(database, [row[0] for row in rows])
    return [
        Rejected(
            row[0], row[1], row[2], _unhex(row[3]), row[4], int(row[5]), _unhex(row[6]), int(row[7]),
            *marks.get(row[0], (0, "")),
        )
        for row in rows
    ]  # fmt: skip


def find_one(database: Database, text: str) -> Rejected:
    """Return the reject with an id or the beginning of one.

    Raises:
        UserError: there is none, or more than one.
    """
    found = find(database, ids=[text], limit=2)
    if not found:
        raise UserError(f"there is no reject {text!r}", "List them with `tailspan rejects list`")
    if len(found) > 1:
        raise UserError(f"{text!r} fits several rejects", "Give more digits")
    return found[0]


def payload_of(database: Database, reject: Rejected) -> bytes:
    """Return the request as it was received."""
    rows = database.rows(
        f"select hex(payload) from tailspan.rejects where {_ID} = '{checked(reject.id)}' limit 1"  # noqa: S608
    )
    return bytes.fromhex(rows[0][0])


def checked(text: str) -> str:
    """Return an id or the beginning of one in lower case.

    Raises:
        UserError: it is none.
    """
    lower = text.lower()
    if not 4 <= len(lower) <= 32 or set(lower) - set("0123456789abcdef"):
        raise UserError(f"{text!r} is no id of a reject", "Give 4 to 32 hex digits of `tailspan rejects list`")
    return lower


def _marks(database: Database, ids: Sequence[str]) -> dict[str, tuple[int, str]]:
    if not ids:
        return {}
    wanted = ", ".join(f"unhex('{checked(item)}')" for item in ids)
    rows = database.rows(
        "select lower(hex(trace_id)), sum(span_count), toDateTime(max(last_start)) from tailspan.traces "  # noqa: S608
        f"where trace_id in ({wanted}) group by trace_id"
    )
    return {row[0]: (int(row[1]), row[2]) for row in rows}


def _unhex(text: str) -> str:
    return bytes.fromhex(text).decode("utf-8", "replace")


class Replayer:
    """Sends rejects to a collector over OTLP/gRPC."""

    def __init__(self, channel: grpc.Channel, metadata: Sequence[tuple[str, str]], database: Database) -> None:
        self._channel, self._metadata, self._database = channel, tuple(metadata), database

    def replay(self, reject: Rejected, wait_s: float = SEEN_WITHIN_S) -> None:
        """Mark a reject as replayed and send it.

        Raises:
            UserError: nothing was sent, or it is marked and could not be sent.
        """
        payload = payload_of(self._database, reject)
        before = _marks(self._database, [reject.id]).get(reject.id, (0, ""))[0]
        if before != reject.replays:
            raise UserError(f"reject {reject.id} was replayed meanwhile", "List it again; --again sends it once more")
        self._send(TRACES, mark(reject.id), "nothing was replayed")
        self._wait_for_mark(reject, before, wait_s)
        signal = next(item for item in SIGNALS if item.name == reject.signal)
        self._send(signal, numbered(payload, before + 1), f"{reject.id} is marked but not sent, repeat with --again")

    def _wait_for_mark(self, reject: Rejected, before: int, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while (seen := _marks(self._database, [reject.id]).get(reject.id, (0, ""))[0]) <= before:
            if time.monotonic() > deadline:
                raise UserError(
                    "the mark of the replay did not reach ClickHouse, so nothing was replayed",
                    "Check that the collector of --endpoint writes into this ClickHouse and that it takes data",
                )
            time.sleep(0.1)
        if seen > before + 1:
            raise UserError(f"reject {reject.id} is being replayed by somebody else", "Look at it again in a minute")

    def _send(self, signal: Signal, request: bytes, otherwise: str) -> None:
        export: Callable[..., bytes] = self._channel.unary_unary(f"/{signal.service}/Export")
        deadline, wait = time.monotonic() + _SEND_S, 0.2
        while True:
            try:
                export(request, timeout=_SEND_S, metadata=self._metadata)
                return
            except grpc.RpcError as error:
                reason: Any = error
                if reason.code() not in _RETRYABLE or time.monotonic() > deadline - wait:
                    raise UserError(
                        f"the collector answered {reason.code().name}: {reason.details()}; {otherwise}",
                        "Check --endpoint, the token and that the collector runs",
                    ) from error
            time.sleep(wait)
            wait = min(wait * 2, 5.0)


def mark(reject_id: str) -> bytes:
    """Return the request with the span that says that a reject is replayed."""
    message = ExportTraceServiceRequest()
    resource_spans = message.resource_spans.add()
    resource_spans.resource.attributes.append(KeyValue(key="service.name", value=AnyValue(string_value="tailspan")))
    now = time.time_ns()
    resource_spans.scope_spans.add().spans.add(
        trace_id=bytes.fromhex(reject_id),
        span_id=os.urandom(8),
        name=MARK,
        kind=1,
        start_time_unix_nano=now,
        end_time_unix_nano=now,
    )
    return bytes(message.SerializeToString())


def numbered(payload: bytes, replay: int) -> bytes:
    """Return a request with the number of its replay in a field that decoders skip."""
    return b"".join((payload, write_varint(_NONCE_FIELD << 3), write_varint(replay)))
