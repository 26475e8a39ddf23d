"""What a page consists of: sections with figures, tables and the commands that print the same numbers.

A `Cell` shows a number as the commands print it and carries it exactly, for who copies it or checks it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tailspan_queries import units
from tailspan_queries.filters import Filters
from tailspan_queries.report import svg
from tailspan_queries.sampling import Sample
from tailspan_queries.times import Window, iso

LONGEST_TEXT = 160
MOST_ROWS = 180
"""Lines of a table on the page; the command lists all."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One field of a table: what is shown, the exact value where it is a number, and its unit."""

    text: str
    value: str = ""
    unit: str = ""
    stage: str = ""
    """Class of colour, for the name of a stage."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a title; the first column is the head of its line."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: int = 0
    """Rows that the command lists beyond these."""

    def holds_words(self, column: int) -> bool:
        """Say whether a column holds text rather than numbers."""
        return not any(row[column].value for row in self.rows)


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart drawn for a wide and for a narrow page, with words above and below it."""

    wide: Markup
    narrow: Markup
    title: str = ""
    caption: str = ""
    legend: tuple[tuple[str, str], ...] = ()
    """Classes of colour with what they mean."""


@dataclass(frozen=True, slots=True)
class Section:
    """One question: the answer in a sentence, figures, tables, what to be careful about, and how to ask it again."""

    key: str
    title: str
    answer: str = ""
    figures: tuple[Figure, ...] = ()
    items: tuple[tuple[str, str], ...] = ()
    """Lines with the kind of mark before each."""
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


def figure(
    draw: Callable[[float], Markup], title: str = "", caption: str = "", legend: Sequence[tuple[str, str]] = ()
) -> Figure:
    """Draw a chart for both widths."""
    return Figure(draw(svg.WIDE), draw(svg.NARROW), title, caption, tuple(legend))


def words(text: str, stage: str = "") -> Cell:
    """Return a cell with text, cut where it is endless."""
    return Cell(svg.short(text, LONGEST_TEXT), stage=stage)


def sentence(text: str) -> str:
    """Return a text with a capital at its begin."""
    return text[:1].upper() + text[1:]


def time(nanoseconds: float | None) -> Cell:
    """Return a cell with a duration."""
    if nanoseconds is None:
        return Cell(units.ABSENT)
    return Cell(units.duration(nanoseconds), exact(nanoseconds), "ns")


def share(ratio: float | None, digits: int = 1) -> Cell:
    """Return a cell with a share in per cent; its value is the ratio."""
    return Cell(units.ABSENT) if ratio is None else Cell(units.percent(ratio, digits), exact(ratio))


def number(value: float | None, unit: str = "") -> Cell:
    """Return a cell with a count or a rate."""
    if value is None:
        return Cell(units.ABSENT)
    shown = f"{value:,}" if isinstance(value, int) else units.significant(value)
    return Cell(shown, exact(value), unit)


def exact(value: float) -> str:
    """Return a number as Python and JSON write it."""
    return repr(value)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], most: int = MOST_ROWS) -> Table:
    """Return a table with at most so many rows."""
    return Table(title, tuple(columns), tuple(map(tuple, rows[:most])), max(len(rows) - most, 0))


def sample_parameters(sample: Sample) -> str:
    """Return the options of a query that reads this sample; empty where everything is read."""
    return "" if sample.whole else "".join(f" --param {name}={value}" for name, value in sample.parameters.items())


def command(words_: str, window: Window | None, filters: Filters) -> str:
    """Return the command line that asks the same of the same requests."""
    parts = ["tailspan", *words_.split()]
    if window is not None:
        parts += ["--since", iso(window.since_ns), "--until", iso(window.until_ns)]
    for name, value in filters.chosen.items():
        parts += [f"--{name}", value]
    return shlex.join(parts)
