"""Every shipped query runs, and its header tells the truth."""

import re

import pytest

from tailspan import attributes
from tailspan.errors import UserError
from tailspan_queries import catalog
from tailspan_queries.client import Client, bind
from tailspan_queries.records import STAGE_ORDER
from tailspan_queries.times import Window

VALUES = {"trace_id": "ab" * 16, "first": "0" * 32, "last": "f" * 32}


@pytest.mark.parametrize("name", catalog.names())
def test_a_query_describes_itself_as_its_header_says(
    client: Client,
    pair_window: Window,
    sampled_window: Window,
    engine_window: Window,
    layer_window: Window,
    slowed_window: Window,
    name: str,
) -> None:
    """Names and types of the columns are those of the header, in order, and the query runs."""
    query = catalog.load(name)
    described = catalog.Query(name, f"describe table ({catalog.strip_comments(query.sql)})")
    windows = {"worker_events": sampled_window, "engine_gaps": engine_window, "layers_drift": slowed_window}
    window = windows.get(name, layer_window if name.startswith("layers") else pair_window)
    baseline = {f"baseline_{end}": value for end, value in layer_window.parameters.items()}
    parameters = {**query.defaults, **window.parameters, **baseline, **VALUES}
    columns = [(row[0], row[1]) for row in client.execute(described, parameters).rows]
    assert columns == [(column.name, column.type) for column in query.columns]
    if name == "trace_engine":
        return  # No engine traced a request of these; tests/queries/groups/test_traced.py has some.
    result = client.run(name, {**window.parameters, **baseline, **VALUES})
    assert result.columns == tuple(column.name for column in query.columns)
    if name != "trace_lookup":
        assert result.rows


@pytest.mark.parametrize("name", catalog.names())
def test_a_header_names_every_parameter_column_and_table(name: str) -> None:
    """The header lists exactly the parameters with their types and the tables that the text uses, and each meaning."""
    query = catalog.load(name)
    assert query.placeholders == {field.name: field.type for field in query.parameters}
    text = catalog.strip_comments(query.sql)
    tables = set(re.findall(r"\b(?:from|join)\s+(tailspan\.\w+)", text))
    for field in query.parameters:
        if field.type == "Identifier":
            # A table by parameter: its meaning says which ones it may be.
            assert f"tailspan.{{{field.name}:Identifier}}" in text
            tables |= {f"tailspan.{table}" for table in re.findall(r"\bspans(?:_\w+)?\b", field.meaning)}
    assert set(query.tables) == tables
    assert query.purpose
    for column in query.columns:
        if column.name.endswith("_ns"):
            assert re.match(r"ns\b", column.meaning), column
    assert all(field.meaning for field in (*query.parameters, *query.columns))
    for placeholder, type_ in query.placeholders.items():
        assert (type_ == "DateTime64(9, 'UTC')") == placeholder.endswith(("since", "until"))


@pytest.mark.parametrize("name", catalog.names())
def test_a_query_spells_only_known_attribute_keys(name: str) -> None:
    """What a query reads from the attribute maps is a key that `tailspan.attributes` names."""
    known = {value for value in vars(attributes).values() if isinstance(value, str)}
    found = set(re.findall(r"attributes_\w+\['([^']+)'\]", catalog.load(name).sql))
    assert found <= known


@pytest.mark.parametrize("name", ["stages", "stages_rollup", "tail_share"])
def test_the_order_of_stages_is_that_of_the_attributes(name: str) -> None:
    """The list in the SQL is the list of stages, so that a new stage cannot be forgotten."""
    text = catalog.load(name).sql
    order = text[text.index("transform(") :]
    assert tuple(re.findall(r"'(\w+)'", order)) == STAGE_ORDER


def test_an_unknown_query_is_an_error_with_a_guess() -> None:
    """A name that is nearly right is answered with the right one."""
    with pytest.raises(UserError, match=r"there is no query 'stage'. Did you mean stages\?"):
        catalog.load("stage")


def test_a_missing_parameter_is_named_with_its_type() -> None:
    """A parameter without value or default is an error before the server is asked; defaults stand in."""
    with pytest.raises(UserError, match=r"trace_id \(String\)") as caught:
        bind(catalog.load("trace"), {"since": "2026-11-29", "until": "2026-11-30"})
    assert caught.value.remedy == "Add --param trace_id=VALUE"
    assert bind(catalog.load("trace"), {"since": 1, "until": 2, "trace_id": "a", "unused": 3})["limit"] == "10000"


@pytest.mark.parametrize(
    "text",
    ["select 1", "-- Purpose: x\n-- Parameters:\n-- Columns:\n-- Tables: t\nselect 1", "-- Purpose: only\nselect 1"],
)
def test_a_header_with_a_part_missing_is_refused(text: str) -> None:
    """Purpose, parameters, columns and tables are all needed."""
    with pytest.raises(catalog.HeaderError, match="in the header"):
        catalog.parse("mine", text)


def test_comments_hide_parameters_and_strings_hide_comments() -> None:
    """A parameter in a comment is none, and two dashes in a string are no comment."""
    query = catalog.Query("mine", "select '--{a:String}', {b:UInt8} -- {c:UInt8}\n, '''--' -- {d:UInt8}")
    assert query.placeholders == {"a": "String", "b": "UInt8"}
