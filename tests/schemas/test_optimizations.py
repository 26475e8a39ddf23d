"""The optimisation ledger in ClickHouse: the latest state of an entry counts, and spans may expire without it."""

from __future__ import annotations

from tailspan import attributes
from tailspan_collector.embedded import Engine

FIRST, SECOND = "11" * 16, "22" * 16
INSERT = """insert into tailspan.spans
(trace_id, span_id, start, role, attributes_string, attributes_int, attributes_bool)
select unhex('{id}'), unhex('{span:016x}'), fromUnixTimestamp64Nano(toInt64({moment})), '{role}',
    map('tailspan.optimization.name', '{name}', 'tailspan.optimization.stage', 'queue'), {ints}, {bools}"""


def write(engine: Engine, id_: str, moment: int, name: str, **more: str) -> None:
    """Insert one state of an entry as the decoded span that carries it."""
    values = {"role": attributes.ROLE_OPTIMIZATION, "ints": "map()", "bools": "map()", **more}
    engine.command(INSERT.format(id=id_, span=moment, moment=moment * 10**9, name=name, **values))


def test_the_latest_state_counts_and_survives_its_spans(engine: Engine) -> None:
    """Of several states the last one is shown, whatever came in between; deleting all spans changes nothing."""
    write(engine, FIRST, 30, "third", bools="map('tailspan.optimization.removed', true)")
    write(engine, FIRST, 10, "first", ints="map('tailspan.optimization.layer', 0)")
    write(engine, SECOND, 20, "other", ints="map('tailspan.optimization.before.since_unix_ns', 5)")
    write(engine, "33" * 16, 20, "no entry", role="event")
    sql = (
        "select id, name, toInt8(removed), layer, before_since_ns, toUnixTimestamp(recorded), toUnixTimestamp(changed) "
        "from tailspan.optimizations order by id"
    )
    expected = [[FIRST, "third", "1", "-1", "0", "10", "30"], [SECOND, "other", "0", "-1", "5", "20", "20"]]
    assert engine.rows(sql) == expected
    engine.command("truncate table tailspan.spans")
    assert engine.rows(sql) == expected


def test_layer_zero_is_a_layer(engine: Engine) -> None:
    """An entry about the first decoder layer is not one about none."""
    write(engine, "44" * 16, 10, "embedding", ints="map('tailspan.optimization.layer', 0)")
    assert engine.rows("select layer from tailspan.optimizations where name = 'embedding'") == [["0"]]
