"""Where reports are printed: rich for tables, plain text for JSON and CSV.

Colour only on a terminal and without `NO_COLOR`; off a terminal a line is `PLAIN_WIDTH` columns unless `COLUMNS` says
otherwise, so that a table in a log is as readable as on a screen.
"""

from __future__ import annotations

import csv
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, TextIO

from tailspan import attributes

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PLAIN_WIDTH = 100
Table = tuple[Sequence[str], Iterable[Sequence[Any]]]
"""Columns and rows."""
FORMATS = ("table", "json", "csv")
STAGE_STYLES = {
    "tls": "bright_black",
    "receive": "bright_blue",
    "tokenize": "cyan",
    "dispatch": "bright_magenta",
    "queue": "red",
    "prefill": "blue",
    "decode": "green",
    "preempted": "magenta",
    "detokenize": "bright_cyan",
    "respond": "bright_green",
    attributes.UNATTRIBUTED: "yellow",
    attributes.ROLE_REQUEST: "bold",
}


def console(stream: TextIO | None = None) -> Console:
    """Return a console on `stream`, by default standard output."""
    from rich.console import Console

    target = stream or sys.stdout
    if target.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return Console(file=target, highlight=False, soft_wrap=False)
    return Console(file=target, highlight=False, width=PLAIN_WIDTH)


def print_table(*parts: RenderableType) -> None:
    """Print renderables to standard output; off a terminal without the blanks that fill up their lines."""
    out = console()
    if out.is_terminal:
        out.print(*parts, sep="\n")
        return
    with out.capture() as captured:
        out.print(*parts, sep="\n")
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def print_json(value: object) -> None:
    """Print one JSON document; what JSON cannot say (nan, infinity) is null."""
    sys.stdout.write(json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows as RFC 4180 CSV with a header line; a missing value is empty."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([cell(value) for value in row] for row in rows)


def print_report(
    form: str, as_json: Callable[[], object], as_csv: Callable[[], Table], as_table: Callable[[int], RenderableType],
    *, has_rows: object = True,
) -> None:  # fmt: skip
    """Print a report in the form asked for; as a table, which is told its width, only if it `has_rows`."""
    if form == "json":
        print_json(as_json())
    elif form == "csv":
        print_csv(*as_csv())
    elif has_rows:
        print_table(as_table(console().width))


def note(line: str) -> None:
    """Print a line for the reader beside the output, to standard error."""
    sys.stderr.write(f"tailspan: {line}\n")


def plain(value: object) -> Any:
    """Return a value that JSON can hold: times as ISO 8601 in UTC, raw bytes as hexadecimal."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case None | bool() | int() | str():
            return value
        case bytes():
            return value.hex()
        case datetime():
            moment = value if value.tzinfo else value.replace(tzinfo=UTC)
            return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
    return str(value)


def cell(value: object) -> str | int | float | None:
    """Return a value for one field of a CSV line or table."""
    found = plain(value)
    if isinstance(found, dict | list):
        return json.dumps(found, ensure_ascii=False)
    if isinstance(found, bool):
        return str(found).lower()
    return found  # type: ignore[no-any-return]
