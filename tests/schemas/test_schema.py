"""The schema files say what every column holds, and their keys are those of `tailspan.attributes`."""

from __future__ import annotations

import re
from pathlib import Path

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from tailspan import attributes
from tailspan_collector.embedded import Engine
from tailspan_schemas import migrations
from tailspan_schemas.migrations import PROTO_FILE, SQL_FOLDER
from tailspan_schemas.promoted import PROMOTED

KNOWN_KEYS = {value for name, value in vars(attributes).items() if name.isupper() and isinstance(value, str)}


def sql(name: str) -> str:
    """Return the text of a schema file."""
    return next(SQL_FOLDER.glob(f"????_{name}.sql")).read_text()


def test_every_column_has_a_comment(engine: Engine) -> None:
    """Every column of every table and view has a comment; materialized views have no columns of their own."""
    rows = engine.rows(
        "select table, name from system.columns where database = 'tailspan' and comment = '' and table not in "
        "(select name from system.tables where database = 'tailspan' and engine = 'MaterializedView')"
    )
    assert rows == []


def test_times_and_sizes_state_their_unit(engine: Engine) -> None:
    """A column whose name ends in _ns, or which is a time, says so in its comment."""
    rows = engine.rows("select name, type, comment from system.columns where database = 'tailspan' and comment != ''")
    assert len(rows) > 100
    for name, kind, comment in rows:
        if name.endswith("_ns"):
            assert "ns" in comment, name
        if kind.startswith("DateTime"):
            assert "UTC" in comment, name


def test_every_object_has_its_file(engine: Engine) -> None:
    """The objects of the database are exactly those that the files are named after."""
    rows = engine.rows("select name from system.tables where database = 'tailspan'")
    files = {migration.name for migration in migrations.load()} - {"database"}
    assert {row[0] for row in rows} == files


def test_tables_and_views_have_comments(engine: Engine) -> None:
    """Every table and view says what it holds."""
    rows = engine.rows(
        "select name from system.tables where database = 'tailspan' and comment = '' and engine != 'MaterializedView'"
    )
    assert rows == []


def test_every_target_deduplicates(engine: Engine) -> None:
    """Every table that an insert reaches recognises a repeated insert, so that a retry stores nothing twice."""
    rows = engine.rows(
        "select name from system.tables where database = 'tailspan' and engine like '%MergeTree' "
        "and name != 'migrations' and engine_full not like '%non_replicated_deduplication_window%'"
    )
    assert rows == []


def test_promoted_keys_are_those_of_the_list() -> None:
    """The flattening view looks up the keys of PROMOTED, each for its column, and tests for its absent value."""
    text = sql("spans_mv")
    keys = re.findall(r"'([\w.]+)'", text[text.index("transform(") : text.index("[1, 2, 3")])
    assert keys == [item.key for item in PROMOTED]
    kinds = "".join(item.kind[0] for item in PROMOTED)
    assert kinds == "s" * 5 + "i" * 9 + "d"
    assert "kind = 1, place between 1 and 5 and string != ''" in text
    assert "kind = 3, place between 6 and 14 and int != -(place = 12)" in text
    for place, item in enumerate(PROMOTED, 1):
        found = re.search(rf"indexOf\(places, {place}\)\]* as (\w+)", text)
        assert found is not None
        assert found[1] in (item.column, "gpu_at", "sent_weight")
        assert item.absent == {"string": "", "int": -1 if item.column == "gpu_ns" else 0, "double": 1.0}[item.kind]
    resource_keys = re.findall(r"strings\[indexOf\(key_names, '([^']+)'\)", text)
    assert resource_keys == [attributes.SERVICE_NAME, attributes.SERVICE_INSTANCE]


def test_columns_are_named_after_their_keys(engine: Engine) -> None:
    """The comment of a promoted column begins with its key."""
    comments = dict(
        engine.rows("select name, comment from system.columns where database = 'tailspan' and table = 'spans'")
    )
    for item in PROMOTED:
        assert comments[item.column].startswith(f"{item.key}:")
    assert comments["service"] == f"Resource attribute {attributes.SERVICE_NAME}"
    assert comments["instance"] == f"Resource attribute {attributes.SERVICE_INSTANCE}"


def test_views_read_known_keys() -> None:
    """Every attribute key that a view reads from the maps is in `tailspan.attributes`, or an engine's own."""
    keys = {
        key
        for path in SQL_FOLDER.glob("*.sql")
        if path.stem[5:] not in ("engine_spans_mv", "engine_requests_mv")
        for key in re.findall(r"attributes_\w+\['([^']+)'\]", path.read_text())
    }
    assert keys
    assert keys <= KNOWN_KEYS


def test_roles_and_stages_of_the_rollup() -> None:
    """The words that the rollup compares and writes are those of `tailspan.attributes`."""
    words = set(re.findall(r"'(\w+)'", sql("stage_minutes_mv").replace("'UTC'", "")))
    assert words == {attributes.ROLE_REQUEST, attributes.ROLE_STAGE, attributes.UNATTRIBUTED}
    for view, role in (("requests", "request"), ("stages", "stage"), ("steps", "step"), ("events", "event")):
        assert f"where role = '{role}'" in sql(view)


def test_proto_agrees_with_opentelemetry() -> None:
    """Every field of the shipped proto has the name and number of OpenTelemetry's, and none of a span is missing."""
    official = {
        "AnyValue": common_pb2.AnyValue,
        "KeyValue": common_pb2.KeyValue,
        "Scope": common_pb2.InstrumentationScope,
        "Event": trace_pb2.Span.Event,
        "Link": trace_pb2.Span.Link,
        "Status": trace_pb2.Status,
        "Span": trace_pb2.Span,
        "ScopeSpans": trace_pb2.ScopeSpans,
        "Resource": resource_pb2.Resource,
        "ResourceSpans": trace_pb2.ResourceSpans,
        "TracesRequest": trace_service_pb2.ExportTraceServiceRequest,
    }
    # Of the profiles signal and of 2026: a span never carries them.
    not_of_spans = {"key_strindex", "string_value_strindex"}
    messages = re.findall(r"^message (\w+) \{(.*?)^\}", Path(PROTO_FILE).read_text(), re.MULTILINE | re.DOTALL)
    assert {name for name, _ in messages} == set(official)
    for name, body in messages:
        ours = {field: int(number) for field, number in re.findall(r"(\w+) = (\d+);", body)}
        theirs = {field.name: field.number for field in official[name].DESCRIPTOR.fields}
        assert ours == {field: number for field, number in theirs.items() if field not in not_of_spans}, name


def test_resource_attributes_are_readable_in_sql(engine: Engine) -> None:
    """The ALIAS columns decode the stored text of resource and scope attributes to a map without kinds."""
    engine.command(
        "insert into tailspan.spans (name, resource, scope) values "
        "('alias', [('host.name', 'string:it\\'s'), ('n', 'int:4')]::Array(Tuple(String, String))::String, '[]')"
    )
    rows = engine.rows(
        "select resource_attributes['host.name'], resource_attributes['n'] from tailspan.spans where name = 'alias'"
    )
    assert rows == [["it\\'s", "4"]]
