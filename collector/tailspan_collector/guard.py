"""Which SQL the read-only interface runs: one statement that reads, and nothing that reaches outside the database.

Two fences. The engine's own `readonly = 1` refuses writes, DDL and every table function that reads files, URLs, other
servers or programs. What chDB lets through nonetheless is refused here: several statements in one text, INTO OUTFILE,
the function `file`, `eval` of text that was not checked, and statements that are no reads (SET, USE, KILL, SYSTEM);
table functions are refused here too, because some look outside before the engine asks whether they may.

Errors: `NotAllowed` carries ClickHouse's error code 164 (READONLY); `SyntaxProblem` 62.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_READS = frozenset({"select", "with", "show", "describe", "desc", "explain", "exists", "("})
HARMLESS_TABLE_FUNCTIONS = frozenset(
    {
        *(
            "numbers",
            "numbers_mt",
            "zeros",
            "zeros_mt",
            "primes",
            "generateseries",
            "generate_series",
            "generaterandom",
        ),
        *("values", "null", "view", "merge", "loop", "format", "mergetreeindex", "mergetreeprojection"),
    }
)
"""Table functions, in lower case, that read nothing but their arguments and the tables of this database."""
_FORBIDDEN_SETTINGS = frozenset({"readonly", "dialect", "allow_ddl", "profile"})
_TOKEN = re.compile(
    r"""
    (?P<skip>\s+|--[^\n]*|\#[!\s][^\n]*|/\*.*?\*/)
  | (?P<string>'(?:[^'\\]|\\.|'')*'|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
  | (?P<quoted>`(?:[^`\\]|\\.|``)*`|"(?:[^"\\]|\\.|"")*")
  | (?P<word>\w+)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


class SqlRefused(Exception):  # noqa: N818 (reads better at every raise)
    """A statement that is not run; the message has ClickHouse's form."""

    code = 164

    def __init__(self, reason: str) -> None:
        name = "READONLY" if self.code == 164 else "SYNTAX_ERROR"
        super().__init__(f"Code: {self.code}. DB::Exception: {reason}. ({name})")


class NotAllowed(SqlRefused):
    """The statement does more than read."""


class SyntaxProblem(SqlRefused):
    """The statement cannot be understood."""

    code = 62


@dataclass(frozen=True, slots=True)
class Token:
    """A word, quoted identifier, string or sign; words in lower case, quotes removed from identifiers."""

    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that may run: its text without SETTINGS clause, those settings, and its FORMAT (None = default)."""

    sql: str
    settings: tuple[tuple[str, str], ...]
    output_format: str | None
    is_settings_query: bool


def forbidden_calls(table_functions: Iterable[str]) -> frozenset[str]:
    """Return the names, in lower case, that must not be called, given the table functions of the engine."""
    return frozenset({"file", "eval", *map(str.lower, table_functions)}) - HARMLESS_TABLE_FUNCTIONS


def check(sql: str, forbidden: frozenset[str]) -> Statement:
    """Return the statement if it only reads and calls nothing forbidden (see `forbidden_calls`).

    Raises:
        SqlRefused: it is refused.
    """
    tokens = tokenize(sql)
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    if not tokens:
        raise SyntaxProblem("Empty query")
    if tokens[0].text not in _READS or tokens[0].kind in ("string", "quoted"):
        raise NotAllowed(f"{tokens[0].text.upper()[:40]} is not allowed: this interface is read-only")
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.kind == "other" and token.text == ";":
            raise NotAllowed("Several statements in one query are not allowed")
        if following is None or token.kind == "string":
            continue
        if token.kind in ("word", "quoted") and following.text == "(" and token.text.lower() in forbidden:
            raise NotAllowed(f"Function {token.text} is not allowed: this interface reads the database only")
        if token.kind == following.kind == "word" and (token.text, following.text) == ("into", "outfile"):
            raise NotAllowed("INTO OUTFILE is not allowed: this interface is read-only")
    settings, cut = _settings_clause(tokens)
    text = sql[: tokens[-1].end]
    if cut is not None:
        text = f"{text[: cut[0]]} {text[cut[1] :]}"
    return Statement(text, settings, _output_format(tokens), _reads_settings(tokens))


def check_setting(name: str) -> None:
    """Check the name of a setting that a client sends.

    Raises:
        NotAllowed: the setting would open what is closed.
    """
    if name.lower() in _FORBIDDEN_SETTINGS or not re.fullmatch(r"\w+", name):
        raise NotAllowed(f"Cannot modify '{name[:60]}' setting in readonly mode")


def tokenize(sql: str) -> list[Token]:
    """Split SQL into tokens, without comments and white space.

    Raises:
        SyntaxProblem: a quote is not closed.
    """
    tokens = []
    for match in _TOKEN.finditer(sql):
        kind, text = match.lastgroup or "other", match[0]
        kind = "string" if kind == "tag" else kind
        if kind == "skip":
            continue
        if kind == "other" and text in "'`\"":
            raise SyntaxProblem("A quote is not closed")
        if kind == "word":
            text = text.lower()
        elif kind == "quoted":
            text = text[1:-1]
        tokens.append(Token(kind, text, match.start(), match.end()))
    return tokens


def _settings_clause(tokens: list[Token]) -> tuple[tuple[tuple[str, str], ...], tuple[int, int] | None]:
    """Find `SETTINGS name = value, ...` at the top level; readonly mode refuses it, so it is applied beforehand."""
    depth = 0
    for index, token in enumerate(tokens):
        if token.kind == "other":
            depth += (token.text == "(") - (token.text == ")")
        if depth == 0 and token.kind == "word" and token.text == "settings" and _is_assignment(tokens, index + 1):
            found, position = [], index + 1
            while _is_assignment(tokens, position):
                value, after = _value(tokens, position + 2)
                found.append((tokens[position].text, value))
                position = after + 1 if after < len(tokens) and tokens[after].text == "," else after
            end = tokens[position].start if position < len(tokens) else tokens[-1].end
            return tuple(found), (token.start, end)
    return (), None


def _is_assignment(tokens: list[Token], index: int) -> bool:
    return index + 2 < len(tokens) and tokens[index].kind == "word" and tokens[index + 1].text == "="


def _value(tokens: list[Token], index: int) -> tuple[str, int]:
    text = tokens[index].text
    index += 1
    if text == "-" or (
        index < len(tokens) and tokens[index].text == "." and tokens[index].start == tokens[index - 1].end
    ):
        while index < len(tokens) and tokens[index].kind != "string" and tokens[index].start == tokens[index - 1].end:
            if tokens[index].text == ",":
                break
            text += tokens[index].text
            index += 1
    if text.startswith("'"):
        text = text[1:-1].replace("''", "'")
    return text, index


def _output_format(tokens: list[Token]) -> str | None:
    for token, following in zip(tokens[-2:0:-1], tokens[:0:-1], strict=False):
        if token.kind == "word" and token.text == "format" and following.kind == "word":
            return following.text
    return None


def _reads_settings(tokens: list[Token]) -> bool:
    """Whether it lists system.settings and calls nothing: then clients may see which settings they can send."""
    texts = [token.text for token in tokens]
    tables = [texts[index + 1 : index + 4] for index, text in enumerate(texts) if text == "from"]
    return (
        tables == [["system", ".", "settings"]] and "(" not in texts and "join" not in texts and "," not in texts[-3:]
    )
