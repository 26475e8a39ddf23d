"""Where a writer puts batches; the same statement for every kind of ClickHouse.

The settings of an insert: how ClickHouse decodes OTLP, and the token by which it recognises a batch that it already
has, in the table and in everything that views make of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tailspan_collector.errors import InsertError

TABLE = "tailspan.otlp_traces"


class Sink(Protocol):
    """One ClickHouse."""

    def insert(self, payloads: Sequence[bytes], token: str) -> None:
        """Store OTLP trace requests, all or none; a token that was stored before changes nothing.

        Raises:
            InsertError: see `errors` for what to do about which.
        """

    def reject(self, payload: bytes, token: str, error: InsertError) -> None:
        """Keep a request that cannot be decoded, with the reason.

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
        # Saves 35 ms an insert: the plan of a view over one block has nothing to optimise.
        "query_plan_enable_optimizations": 0,
        # A sender with a wrong clock may date spans anywhere; that must not fail the spans of the others.
        "max_partitions_per_insert_block": 0,
    }
