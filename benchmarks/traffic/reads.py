"""Which tables a question reads, as ClickHouse plans it: those of which at least one granule is left to read.

Errors: `UserError` as `tailspan_queries.client` says.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tailspan.cli import main
from tailspan_queries import catalog
from tailspan_queries.client import Client, Result

_TABLE = re.compile(r"ReadFromMergeTree \(([\w.]+)\)")
_GRANULES = re.compile(r"Parts: \d+ \| Granules: (\d+)")
Asked = tuple[catalog.Query, Mapping[str, Any]]


def tables(client: Client, asked: Sequence[Asked]) -> list[str]:
    """Return the names of the tables, without the database."""
    found = set()
    for query, parameters in asked:
        explained = catalog.Query(query.name, f"explain indexes = 1 {query.sql}")
        known = {**query.defaults, **parameters}
        lines = [str(row[0]) for row in client.execute(explained, known).rows]
        found |= set(_read(lines))
    return sorted(found)


def _read(lines: Sequence[str]) -> Iterator[str]:
    """Yield the tables of a plan; of one of which nothing is left to read there is no number of granules."""
    table = ""
    for line in lines:
        if match := _TABLE.search(line):
            table = match[1]
        elif (granules := _GRANULES.search(line)) and int(granules[1]):
            yield table.removeprefix("tailspan.")


@contextlib.contextmanager
def _recorded(asked: list[Asked]) -> Iterator[None]:
    """Note what every client in this process is asked."""
    execute = Client.execute

    def noting(self: Client, query: catalog.Query, parameters: Mapping[str, Any]) -> Result:
        asked.append((query, parameters))
        return execute(self, query, parameters)

    Client.execute = noting  # type: ignore[method-assign]
    try:
        yield
    finally:
        Client.execute = execute  # type: ignore[method-assign]


def of_command(client: Client, words: Sequence[str]) -> list[str]:
    """Run a command in this process and return the tables that its questions read."""
    asked: list[Asked] = []
    with _recorded(asked), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main(list(words))
    return tables(client, asked)
