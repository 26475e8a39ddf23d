"""`tailspan query`: run a shipped query by its name, or a `.sql` file of your own.

In: a name or a path, values for its `{name:Type}` parameters. Out: the result as a table, JSON or CSV.
JSON, stable: `query`, `columns` [{name, type}], `rows` [{column: value}].
Errors: `UserError` for an unknown name, a file that cannot be read, a parameter that is missing, unknown or malformed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from tailspan.errors import UserError
from tailspan_queries import catalog, units
from tailspan_queries.client import Result
from tailspan_queries.console import PLAIN_WIDTH, cell

if TYPE_CHECKING:
    from rich.console import RenderableType

_NUMBERS = ("Int", "UInt", "Float", "Decimal")


def find_query(name: str) -> catalog.Query:
    """Return the shipped query of that name, or the query in the file of that path.

    Raises: UserError if it is neither.
    """
    if not (name.endswith(".sql") or "/" in name):
        return catalog.load(name)
    path = Path(name).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UserError(
            f"cannot read {name}: {reason}", "Give a .sql file, or a name that `tailspan query` lists"
        ) from None
    if not catalog.strip_comments(text).strip(" \n\t;"):
        raise UserError(f"{name} holds no query", "Write one SELECT statement into it")
    try:
        return catalog.parse(name, text)
    except catalog.HeaderError:
        # A file of one's own needs no header.
        return catalog.Query(name, text)


def parse_parameters(query: catalog.Query, values: Sequence[str]) -> dict[str, str]:
    """Read `name=value` options.

    Raises: UserError for one that is not of this form or that the query does not take.
    """
    found = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserError(f"--param {text!r} is not of the form name=value", "Write --param limit=20, for example")
        if name not in query.placeholders:
            takes = ", ".join(query.placeholders) or "none"
            raise UserError(f"query {query.name} has no parameter {name!r}", f"It takes: {takes}")
        found[name] = value
    return found


def list_queries() -> list[tuple[str, str]]:
    """Return name and purpose of every shipped query."""
    return [(name, catalog.load(name).purpose) for name in catalog.names()]


def render_list(queries: Sequence[tuple[str, str]]) -> RenderableType:
    """Return the list of queries as a table."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, purpose in queries:
        table.add_row(name, purpose)
    return table


def render_result(result: Result, width: int = PLAIN_WIDTH) -> RenderableType:
    """Return rows as a table, or as one block a row if they are wider than `width`.

    Columns that end in `_ns` or `_ratio` are shown as durations and per cent.
    """
    titles = [title(name) for name in result.columns]
    lines = [[human(name, value) for name, value in zip(result.columns, row, strict=True)] for row in result.rows]
    needed = [max(map(len, column)) for column in zip(titles, *lines, strict=True)]
    if sum(needed) + len(needed) - 1 > width and len(titles) > 1:
        return blocks(titles, lines)
    table = new_table()
    for name, type_ in zip(titles, result.types, strict=True):
        numeric = any(word in type_ for word in _NUMBERS) and not type_.startswith(("Map", "Array", "Tuple"))
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for line in lines:
        table.add_row(*map(Text, line))
    return table


def blocks(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> RenderableType:
    """Return one block of `name value` lines for each row."""
    table = new_table()
    table.add_column("row", justify="right", style="dim", no_wrap=True)
    table.add_column("column", style="bold", no_wrap=True)
    table.add_column("value", overflow="fold")
    for number, line in enumerate(lines, start=1):
        for index, (name, value) in enumerate(zip(titles, line, strict=True)):
            table.add_row(str(number) if index == 0 else "", Text(name), Text(value))
        table.add_section()
    return table


def new_table() -> Table:
    """Return an empty table."""
    return Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, header_style="bold")


def title(column: str) -> str:
    """Return the head of a column: its name without the unit that the cells show."""
    for ending in ("_ns", "_ratio"):
        column = column.removesuffix(ending)
    return column


def human(column: str, value: Any) -> str:
    """Return a cell for people."""
    if value is None:
        return units.ABSENT
    if isinstance(value, int | float) and not isinstance(value, bool):
        if column.endswith("_ns"):
            return units.duration(value)
        if column.endswith("_ratio"):
            return units.percent(value)
        if isinstance(value, float):
            return f"{value:,.2f}"
        return f"{value:,}"
    return str(cell(value))


def result_json(query: catalog.Query, result: Result) -> dict[str, Any]:
    """Return the result as the module says."""
    columns = [{"name": name, "type": type_} for name, type_ in zip(result.columns, result.types, strict=True)]
    return {"query": query.name, "columns": columns, "rows": result.records()}
