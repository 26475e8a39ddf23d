"""Where a writer puts batches; the same statement for every kind of ClickHouse and every signal.

The settings of an insert: how ClickHouse decodes OTLP, and the token by which it recognises a batch that it already
has, in the table and in everything that views make of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tailspan_collector.signals import Signal
from tailspan_collector.spool.interfaces import Received

Body = bytes | memoryview
REJECTS_TABLE = "tailspan.rejects"
REJECTS_COLUMNS = ("received_at", "peer", "signal", "code", "reason", "batch", "payload")


@dataclass(frozen=True, slots=True)
class Reject:
    """A request that ClickHouse cannot store, and why."""

    signal: Signal
    request: Received
    code: int
    reason: str
    token: str
    """Begins with the deduplication token of the insert that failed; the first of an insert is that insert's own."""


class Sink(Protocol):
    """One ClickHouse."""

    def insert(self, signal: Signal, body: Body, token: str) -> None:
        """Store OTLP requests, all or none; a token that was stored before changes nothing.

        `body` is a stream of ClickHouse's `Protobuf` format: messages, each after its length.

        Raises:
            InsertError: see `errors` for what to do about which.
        """

    def reject(self, *rejects: Reject) -> None:
        """Keep requests that cannot be stored, all or none, under the token of the first.

        Raises:
            InsertError: as `insert`.
        """


def insert_settings(token: str) -> dict[str, str | int]:
    """Return the ClickHouse settings of an insert of OTLP messages, less where the protobuf schema comes from."""
    return {
        "insert_deduplication_token": token,
        "insert_deduplicate": 1,
        "deduplicate_blocks_in_dependent_materialized_views": 1,
        "async_insert": 0,
        "input_format_protobuf_oneof_presence": 1,
        # A batch is one block, so that it is stored as a whole or not at all.
        "max_insert_block_size": 1_000_000,
        "input_format_parallel_parsing": 0,
        "max_memory_usage": 4 << 30,
        # Each saves CPU time of an insert: the plan of a view over one block has nothing to optimise, nothing to divide
        # among threads, and no expression that runs often enough to be worth compiling.
        "query_plan_enable_optimizations": 0,
        "max_threads": 1,
        "compile_expressions": 0,
        "compile_aggregate_expressions": 0,
        # Every day is a part of its own in each table, with its fsync. A sender with a wrong clock may date spans on a
        # few days; a request with spans on thousands of them would hold up everybody for minutes, and becomes a reject.
        "max_partitions_per_insert_block": 100,
    }


def reject_settings(token: str) -> dict[str, str | int]:
    """Return the ClickHouse settings with which a row of the reject table is inserted."""
    return {"insert_deduplication_token": token, "insert_deduplicate": 1, "async_insert": 0}
