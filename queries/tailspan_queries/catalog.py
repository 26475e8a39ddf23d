"""The shipped queries: one `.sql` file a question, described by the comment at its top.

In: `sql/NAME.sql`. The header has the sections `Purpose:`, `Parameters:`, `Columns:` and `Tables:`; a parameter or
column is one line `NAME TYPE [= DEFAULT]  meaning`, and two spaces end the type.
Errors: `UserError` for a name that is not shipped, `HeaderError` for a header that does not read.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from tailspan.errors import UserError

_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*):([^{}]+)\}")
_SECTION = re.compile(r"(Purpose|Parameters|Columns|Tables):\s*(.*)")
_ENTRY = re.compile(r"\s{2,4}(\w+)\s+(\S.*?)(?:\s{2,}(.*))?")


class HeaderError(ValueError):
    """A shipped query whose header comment does not follow the form; a defect of this package."""


@dataclass(frozen=True, slots=True)
class Field:
    """One parameter or column: its ClickHouse type, its meaning with the unit, and a default where one exists."""

    name: str
    type: str
    meaning: str
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """The text of a query and what its header says about it."""

    name: str
    sql: str
    purpose: str = ""
    parameters: tuple[Field, ...] = ()
    columns: tuple[Field, ...] = ()
    tables: tuple[str, ...] = ()

    @property
    def placeholders(self) -> dict[str, str]:
        """Names and types of the `{name:Type}` parameters that the text uses."""
        return dict(_PLACEHOLDER.findall(strip_comments(self.sql)))

    @property
    def defaults(self) -> dict[str, str]:
        """Parameters that need not be given."""
        return {field.name: field.default for field in self.parameters if field.default is not None}


@cache
def names() -> tuple[str, ...]:
    """Return the names of all shipped queries in alphabetical order."""
    folder = resources.files(__package__) / "sql"
    return tuple(sorted(file.name[:-4] for file in folder.iterdir() if file.name.endswith(".sql")))


@cache
def load(name: str) -> Query:
    """Read one shipped query.

    Raises: UserError if there is none of that name.
    """
    if name not in names():
        close = difflib.get_close_matches(name, names(), n=1)
        hint = f"Did you mean {close[0]}? " if close else ""
        raise UserError(f"there is no query {name!r}", f"{hint}`tailspan query` lists all; a file needs its path")
    text = (resources.files(__package__) / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    return parse(name, text)


def parse(name: str, text: str) -> Query:
    """Read a query's header and keep its text.

    Raises: HeaderError if the header is incomplete or a line in it does not read.
    """
    sections: dict[str, list[str]] = {}
    current = ""
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        content = line[2:]
        if match := _SECTION.fullmatch(content.strip()):
            current = match[1]
            sections[current] = [match[2]] if match[2] else []
        elif content.strip() and current:
            sections[current].append(content)
    if missing := [word for word in ("Purpose", "Parameters", "Columns", "Tables") if not sections.get(word)]:
        raise HeaderError(f"{name}.sql: no {' and no '.join(missing)} in the header")
    return Query(
        name=name,
        sql=text,
        purpose=sections["Purpose"][0].strip(),
        parameters=tuple(entry(name, line) for line in sections["Parameters"]),
        columns=tuple(entry(name, line) for line in sections["Columns"]),
        tables=tuple(word.strip() for word in " ".join(sections["Tables"]).split(",")),
    )


def entry(name: str, line: str) -> Field:
    """Read one parameter or column line of a header."""
    match = _ENTRY.fullmatch(line.rstrip())
    if match is None:
        raise HeaderError(f"{name}.sql: header line does not read: {line!r}")
    type_, _, default = match[2].partition(" = ")
    return Field(match[1], type_.strip(), match[3] or "", default.strip().strip("'") if default else None)


def strip_comments(sql: str) -> str:
    """Return the text without `--` comments; string literals are kept."""
    return re.sub(r"('(?:[^'\\]|\\.|'')*')|--[^\n]*", lambda match: match[1] or "", sql)
