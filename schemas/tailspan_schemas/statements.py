"""The parts of a CREATE statement that its cluster form changes, with their places in the text.

In: the text of one shipped `.sql` file. Out: a `Statement`.
Errors: `UnknownStatement` for every form that is not read here, so that nothing passes half understood.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

DATABASE = "tailspan"
KINDS = ("database", "table", "view", "materialized view")
_TOKEN = re.compile(
    r"""
    (?P<skip>\s+|--[^\n]*|/\*.*?\*/)
  | (?P<string>'(?:[^'\\]|\\.|'')*')
  | (?P<quoted>`(?:[^`\\]|\\.)*`|"(?:[^"\\]|\\.)*")
  | (?P<word>\w+)
  | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)


class UnknownStatement(ValueError):  # noqa: N818 (reads better at every raise)
    """A statement of a form that has no cluster form yet; a defect of this package."""


@dataclass(frozen=True, slots=True)
class Token:
    """A word in lower case, a name without its quotes, a string or a sign; `depth` counts the open brackets."""

    kind: str
    text: str
    start: int
    end: int
    depth: int


@dataclass(frozen=True, slots=True)
class Place:
    """A name or clause and where it stands."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Statement:
    """One CREATE statement; tables are named without their database."""

    sql: str
    kind: str
    name: Place
    engine: Place | None = None
    """Tables: the engine's name, `MergeTree`; what follows in brackets is not part of it."""
    columns: tuple[str, ...] = ()
    order_by: str = ""
    target: Place | None = None
    """Materialized views: the table after TO."""
    sources: tuple[Place, ...] = ()
    """Views: the tables of this database that they read."""


def parse(sql: str) -> Statement:
    """Read a shipped statement.

    Raises:
        UnknownStatement: it is none of `KINDS`, or uses a clause that is not known here.
    """
    tokens = list(_tokens(sql))
    words = [token.text for token in tokens]
    at = 3 if words[:3] == ["create", "or", "replace"] else 1
    kind = " ".join(words[at : at + 2]) if words[at : at + 1] == ["materialized"] else "".join(words[at : at + 1])
    if words[:1] != ["create"] or kind not in KINDS:
        raise UnknownStatement(f"no cluster form is known for: {' '.join(words[:4])}")
    if any(token.text == ";" for token in tokens):
        raise UnknownStatement("several statements in one file have no cluster form")
    at += len(kind.split())
    if words[at : at + 3] == ["if", "not", "exists"]:
        at += 3
    name, after = _name(tokens, at, kind)
    if words[after : after + 2] == ["on", "cluster"]:
        raise UnknownStatement(f"{name.text} names a cluster already")
    if kind == "database":
        return Statement(sql, kind, name)
    if kind == "table":
        return _table(sql, name, tokens, after)
    return _view(sql, kind, name, tokens, after)


def _tokens(sql: str) -> Iterator[Token]:
    depth = 0
    for match in _TOKEN.finditer(sql):
        kind, text = match.lastgroup or "sign", match[0]
        if kind == "skip":
            continue
        if text in ")]":
            depth -= 1
        shown = text.lower() if kind == "word" else text[1:-1] if kind == "quoted" else text
        yield Token(kind, shown, match.start(), match.end(), depth)
        if text in "([":
            depth += 1


def _name(tokens: list[Token], at: int, kind: str) -> tuple[Place, int]:
    if kind == "database":
        token = tokens[at]
        return Place(token.text, token.start, token.end), at + 1
    if [token.text for token in tokens[at : at + 2]] != [DATABASE, "."]:
        raise UnknownStatement(f"expected {DATABASE}.NAME, found {tokens[at].text}")
    return Place(tokens[at + 2].text, tokens[at].start, tokens[at + 2].end), at + 3


def _table(sql: str, name: Place, tokens: list[Token], at: int) -> Statement:
    if tokens[at].text != "(":
        raise UnknownStatement(f"table {name.text} has no list of columns")
    close = next(index for index in range(at, len(tokens)) if tokens[index].text == ")" and tokens[index].depth == 0)
    top = [index for index in range(close + 1, len(tokens)) if tokens[index].depth == 0]
    texts = {tokens[index].text: index for index in reversed(top)}
    if "engine" not in texts or tokens[texts["engine"] + 1].text != "=":
        raise UnknownStatement(f"table {name.text} has no engine")
    if "as" in texts:
        raise UnknownStatement(f"table {name.text} is made AS another")
    engine = tokens[texts["engine"] + 2]
    order_by = _clause(sql, tokens, texts["order"] + 2) if "order" in texts else ""
    original = Place(sql[engine.start : engine.end], engine.start, engine.end)
    return Statement(sql, "table", name, original, tuple(_columns(sql, tokens[at + 1 : close])), order_by)


def _columns(sql: str, tokens: list[Token]) -> Iterator[str]:
    begins = True
    for token in tokens:
        if begins and token.text not in ("index", "projection", "constraint"):
            yield sql[token.start : token.end].strip("`")
        begins = token.depth == 1 and token.text == ","


def _clause(sql: str, tokens: list[Token], at: int) -> str:
    """Return the expression from a token on, up to the next clause."""
    ends = ("settings", "comment", "ttl", "primary", "sample", "partition")
    end = next((i for i in range(at, len(tokens)) if tokens[i].depth == 0 and tokens[i].text in ends), len(tokens))
    return sql[tokens[at].start : tokens[end - 1].end]


def _view(sql: str, kind: str, name: Place, tokens: list[Token], at: int) -> Statement:
    target = None
    if kind == "materialized view":
        if tokens[at].text != "to":
            raise UnknownStatement(f"materialized view {name.text} has no target table")
        target, at = _name(tokens, at + 1, kind)
    sources = []
    for index in range(at, len(tokens) - 3):
        names_table = tokens[index].text in ("from", "join") and tokens[index].kind == "word"
        if names_table and [token.text for token in tokens[index + 1 : index + 3]] == [DATABASE, "."]:
            sources.append(_name(tokens, index + 1, kind)[0])
    if not sources:
        raise UnknownStatement(f"view {name.text} reads no table of {DATABASE}")
    return Statement(sql, kind, name, target=target, sources=tuple(sources))
