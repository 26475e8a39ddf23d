"""Where reports are printed: rich for tables, plain text for JSON and CSV.

Colour only on a terminal and without `NO_COLOR`; off a terminal a line is `PLAIN_WIDTH` columns unless `COLUMNS` says
otherwise, so that a table in a log is as readable as on a screen. Names and values come from whoever sends spans: what
could steer a terminal is left out of tables, CSV and notes, JSON has it escaped, and nothing is read as markup. A text
that a spreadsheet would run as a formula has an apostrophe before it in CSV.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, TextIO

from tailspan import attributes
from tailspan.spreadsheet import inert

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

PLAIN_WIDTH = 100
Table = tuple[Sequence[str], Iterable[Sequence[Any]]]
"""Columns and rows."""
FORMATS = ("table", "json", "csv")
STEERING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""What moves a cursor, colours, ends a line or turns the direction of writing."""
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
    chosen = target.isatty() or os.environ.get("COLUMNS", "").isdigit()
    width = None if chosen else PLAIN_WIDTH
    return Console(file=target, highlight=False, markup=False, emoji=False, soft_wrap=False, width=width)


@dataclass(frozen=True, slots=True)
class Harmless:
    """A renderable without what its text could do to a terminal; the styles stay."""

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        for segment in console.render(self.content, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)


def harmless(text: str) -> str:
    """Return the text without control characters (but line feeds) and without what turns the direction of writing."""
    return STEERING.sub("", text)


def print_table(*parts: RenderableType) -> None:
    """Print renderables to standard output; off a terminal without the blanks that fill up their lines."""
    out = console()
    whole = [Harmless(part) for part in parts]
    if out.is_terminal:
        out.print(*whole, sep="\n")
        return
    with out.capture() as captured:
        out.print(*whole, sep="\n")
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def print_json(value: object) -> None:
    """Print one JSON document; what JSON cannot say (nan, infinity) is null."""
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    # The text of JSON itself has none of these, so they stand in strings.
    sys.stdout.write(STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows as RFC 4180 CSV with a header line; a missing value is empty."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for row in (columns, *rows):
        writer.writerow([inert(harmless(field)) if isinstance(field, str) else field for field in map(cell, row)])


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
    sys.stderr.write(f"tailspan: {harmless(' '.join(line.splitlines()))}\n")


def plain(value: object) -> Any:
    """Return a value that JSON can hold: times as ISO 8601 in UTC, raw bytes as hexadecimal."""
    match value:
        case float():
            # Adding 0 takes the sign of a negative zero.
            return value + 0.0 if math.isfinite(value) else None
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
