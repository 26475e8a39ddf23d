"""Rows for people and programs: aligned text, JSON or CSV on standard output."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tailspan.spreadsheet import inert

FORMATS = ("table", "json", "csv")


def print_rows(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], form: str) -> None:
    """Print rows; JSON keeps every key of a row, the other forms show `columns`."""
    if form == "json":
        sys.stdout.write(json.dumps(list(rows), indent=2, ensure_ascii=False) + "\n")
        return
    if form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([inert(field) if isinstance(field := row[name], str) else field for name in columns])
        return
    cells = [[name.replace("_", " ") for name in columns], *([_text(row[name]) for name in columns] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    for line in cells:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n")


def size_text(count: int) -> str:
    """Return a number of bytes as people read it."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def _text(value: Any) -> str:
    if value is None or value == "":
        return "-"
    # What a sender put into a reason must not steer the terminal.
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in str(value))
