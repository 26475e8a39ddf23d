"""The Kafka path: the DDL is one that ClickHouse takes, and its decode half stores what the collector would store.

chDB has no Kafka consumer: it checks the engine's settings and creates the views, and then a table of another engine
stands in for the topic, filled from files of messages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailspan_collector.embedded import EmbeddedSink, Engine
from tailspan_collector.framing import write_varint
from tailspan_collector.signals import SIGNALS, TRACES
from tailspan_schemas import migrations
from tests.support.new_database import make_database
from tests.support.otlp_messages import request_with_stages

FOLDER = migrations.SQL_FOLDER.parent / "kafka"
STARTED = "Shutdown was called"  # what chDB says once everything about a Kafka table was right
TOPIC = """create table tailspan.kafka_traces as tailspan.otlp_traces engine = Memory"""
VIRTUAL = (
    "_topic LowCardinality(String) default 'otlp_spans'",
    "_partition UInt64 default 3",
    "_offset UInt64 default rowNumberInAllBlocks()",
    "_timestamp_ms Nullable(DateTime64(3)) default now64(3)",
    "_error String",
    "_raw_message String",
)
COUNTS = (
    "select count(), uniqExact(span_id), sum(cityHash64(* except (stored))) from tailspan.spans",
    "select sum(span_count), sum(count) from tailspan.stage_minutes",
    "select sum(span_count), sum(count) from tailspan.stage_hours",
    "select count(), uniqExact(span_id), sum(cityHash64(*)) from tailspan.spans_sample",
    "select sum(span_count), uniqExact(trace_id) from tailspan.traces",
)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Engine]:
    """A database with the whole schema and the shipped connection."""
    with Engine(make_database(tmp_path / "db")) as engine:
        engine.command(sql("connection"))
        yield engine


def sql(name: str) -> str:
    """Return the text of a shipped file."""
    return (FOLDER / f"{name}.sql").read_text()


def create_kafka_table(database: Engine, text: str) -> None:
    """Create a Kafka table as far as chDB goes; what is wrong with its settings is raised."""
    with pytest.raises(RuntimeError, match=STARTED):
        database.command(text)


def with_topic(database: Engine) -> None:
    """Put a stand-in for the topic and the shipped views into the database."""
    database.command(TOPIC)
    for column in VIRTUAL:
        database.command(f"alter table tailspan.kafka_traces add column {column}")
    database.command(sql("kafka_traces_mv"))
    database.command(sql("kafka_traces_rejects_mv"))


def consume(database: Engine, content: bytes, form: str, columns: str = "resource_spans") -> None:
    """Insert a file of messages into the stand-in."""
    file = os.memfd_create("topic")
    with os.fdopen(file, "wb") as stream:
        stream.write(content)
        stream.flush()
        database.command(
            f"insert into tailspan.kafka_traces ({columns}) from infile '/proc/self/fd/{file}' settings "
            f"format_schema = '{TRACES.proto_file}:{TRACES.proto_message}', input_format_protobuf_oneof_presence = 1 "
            f"format {form}"
        )


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.name)
def test_the_shipped_ddl_is_taken(database: Engine, signal: object) -> None:
    """Every setting is one of the Kafka engine, and the views find their columns, virtual ones too."""
    name = signal.name  # type: ignore[attr-defined]
    create_kafka_table(database, sql(f"kafka_{name}"))
    database.command(sql(f"kafka_{name}_mv"))
    database.command(sql(f"kafka_{name}_rejects_mv"))
    rows = database.rows(f"select count() from system.tables where database = 'tailspan' and name like 'kafka_{name}%'")
    assert rows == [["3"]]
    assert f"kafka_schema = '{signal.proto_file.stem}:{signal.proto_message}'" in sql(f"kafka_{name}")  # type: ignore[attr-defined]


def test_a_wrong_setting_would_be_noticed(database: Engine) -> None:
    """The check above can fail: chDB refuses settings that the engine does not have."""
    with pytest.raises(RuntimeError, match="Unknown setting"):
        database.command(sql("kafka_traces").replace("kafka_flush_interval_ms", "kafka_flush_every_ms"))


def test_single_and_framed_messages_store_what_the_collector_stores(tmp_path: Path) -> None:
    """Messages one by one as a consumer gets them, a file of framed messages, and an insert of the collector agree."""
    payloads = [request_with_stages(requests) for requests in (1, 5, 20)]
    framed = b"".join(write_varint(len(payload)) + payload for payload in payloads)
    found = []
    for way in ("collector", "single", "framed"):
        with Engine(make_database(tmp_path / way)) as engine:
            with_topic(engine)
            if way == "collector":
                EmbeddedSink(engine).insert(TRACES, framed, "a")
            elif way == "framed":
                consume(engine, framed, "Protobuf")
            else:
                for payload in payloads:
                    consume(engine, payload, "ProtobufSingle")
            found.append([engine.rows(query) for query in COUNTS])
            assert engine.rows("select count() from tailspan.rejects") == [["0"]]
    assert found[0][0][0][0] == "78"
    assert found[0] == found[1] == found[2]


def test_a_broken_message_is_kept_and_its_neighbours_are_stored(database: Engine) -> None:
    """In the mode `stream` a broken message has an error and its bytes; it goes to the rejects, where it came from."""
    with_topic(database)
    consume(database, request_with_stages(2), "ProtobufSingle")
    database.command(
        "insert into tailspan.kafka_traces (_offset, _error, _raw_message) "
        "values (41, 'Code: 25. DB::Exception: broken', unhex('0a07ff'))"
    )
    assert database.rows("select count() from tailspan.spans") == [["6"]]
    assert database.rows("select signal, code, peer, batch, hex(payload), reason from tailspan.rejects") == [
        ["traces", "25", "kafka:otlp_spans", "kafka-otlp_spans-3-41", "0A07FF", "Code: 25. DB::Exception: broken"]
    ]
