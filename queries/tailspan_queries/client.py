"""The connection to ClickHouse: HTTP through clickhouse-connect, only for reading.

In: a query of the catalog and its parameters. Out: column names, types and rows of plain Python values.
Errors: `UserError` for every reason that the user can mend: the server is not there, refuses the login, has no
tailspan tables, rejects the query, or takes longer than `QUERY_TIMEOUT_S`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from tailspan.errors import UserError
from tailspan_queries import catalog

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client as Connection

URL_VARIABLE = "TAILSPAN_CLICKHOUSE_URL"
DEFAULT_URL = "http://127.0.0.1:8123"
DATABASE = "tailspan"
CONNECT_TIMEOUT_S = 5
QUERY_TIMEOUT_S = 300
_NO_TABLES = (60, 81)
_NO_ACCESS = (193, 194, 497, 516)
_NO_MEMORY = 241


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to one query."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: Sequence[Sequence[Any]]

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries by column name."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class Client:
    """Runs queries against one ClickHouse."""

    def __init__(self, connection: Connection, url: str) -> None:
        self._connection = connection
        self.url = url

    def run(self, name: str, parameters: Mapping[str, Any]) -> Result:
        """Run a shipped query; parameters that it does not use are left out.

        Raises: UserError as the module says, and for a parameter without a value.
        """
        return self.execute(catalog.load(name), parameters)

    def execute(self, query: catalog.Query, parameters: Mapping[str, Any]) -> Result:
        """Run the text of a query with its parameters bound by the server."""
        from clickhouse_connect.driver.exceptions import DatabaseError, Error

        values = bind(query, parameters)
        try:
            answer = self._connection.query(query.sql, parameters=values, column_oriented=False)
        except DatabaseError as error:
            if error_code(error) is None:
                raise unanswered(query.name, error, self.url) from error
            raise rejected(query.name, error, self.url) from error
        except (Error, OSError) as error:
            raise unreachable(self.url) from error
        types = tuple(str(type_.name) for type_ in answer.column_types)
        return Result(tuple(answer.column_names), types, answer.result_rows)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def connect(url: str | None = None) -> Client:
    """Open a connection to `url`, else to `TAILSPAN_CLICKHOUSE_URL`, else to the local collector.

    Raises: UserError if the address cannot be used or nothing answers there.
    """
    import clickhouse_connect
    from clickhouse_connect.driver.exceptions import DatabaseError, Error

    # The driver logs what it raises; its errors reach the user as one line of ours.
    logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())
    address = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
    parts = split_url(address)
    shown = without_password(parts)
    check_answers(shown)
    try:
        connection = clickhouse_connect.get_client(
            interface=parts.scheme,
            host=parts.hostname or "",
            port=parts.port or (8443 if parts.scheme == "https" else 8123),
            username=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password or ""),
            connect_timeout=CONNECT_TIMEOUT_S,
            send_receive_timeout=QUERY_TIMEOUT_S,
            autogenerate_session_id=False,
            query_retries=0,
        )
    except DatabaseError as error:
        if error_code(error) in (None, 0):
            raise unreachable(shown) from error
        raise rejected("the connection", error, shown) from error
    except (Error, OSError) as error:
        raise unreachable(shown) from error
    return Client(connection, shown)


@contextmanager
def connected(url: str | None) -> Iterator[Client]:
    """Open a connection as `connect` does and close it at the end."""
    client = connect(url)
    try:
        yield client
    finally:
        client.close()


def check_answers(url: str) -> None:
    """Ask for a sign of life, so that a port that hangs or belongs to another program is told at once.

    Raises: UserError if nothing answers within `CONNECT_TIMEOUT_S`, or something that is no ClickHouse does.
    """
    import urllib3

    with urllib3.PoolManager() as pool:
        try:
            answer = pool.request("GET", f"{url}/ping", timeout=CONNECT_TIMEOUT_S, retries=False)
        except urllib3.exceptions.HTTPError as error:
            raise unreachable(url) from error
    if answer.status != 200 or answer.data.strip() != b"Ok.":
        raise UserError(
            f"what answers at {url} is no ClickHouse", f"Name its HTTP address with --url or {URL_VARIABLE}"
        )


def split_url(address: str) -> SplitResult:
    """Check a ClickHouse address.

    Raises: UserError if it is not http(s)://[user:password@]host[:port].
    """
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise UserError(f"{address!r} is no ClickHouse address", f"Use http://HOST:PORT, for example {DEFAULT_URL}")
    return parts


def without_password(parts: SplitResult) -> str:
    """Return the address as it may be shown."""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def bind(query: catalog.Query, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Choose the values that a query uses; its defaults stand in for those not given.

    Raises: UserError if one is missing.
    """
    known = {**query.defaults, **{name: value for name, value in parameters.items() if value is not None}}
    if missing := [name for name in query.placeholders if name not in known]:
        options = " ".join(f"--param {name}=VALUE" for name in missing)
        types = ", ".join(f"{name} ({query.placeholders[name]})" for name in missing)
        raise UserError(f"query {query.name} needs the parameter {types}", f"Add {options}")
    return {name: known[name] for name in query.placeholders}


def unreachable(url: str) -> UserError:
    """The error for a ClickHouse that does not answer."""
    return UserError(
        f"ClickHouse is not reachable at {url}",
        f"Start the collector with `tailspan up`, or name another address with --url or {URL_VARIABLE}",
    )


def unanswered(name: str, error: Exception, url: str) -> UserError:
    """The error for a statement whose answer never came: it took too long, or ClickHouse went away."""
    if "timed out" in str(error).lower():
        return UserError(
            f"ClickHouse at {url} did not answer {name} within {QUERY_TIMEOUT_S} s",
            "Ask for a shorter window or one --service or --model, and leave --exact out",
        )
    return unreachable(url)


def rejected(name: str, error: Exception, url: str) -> UserError:
    """The error for a statement that ClickHouse refused, with its own first sentence."""
    code = error_code(error)
    if code in _NO_TABLES and DATABASE in str(error):
        return UserError(f"the ClickHouse at {url} has no tailspan tables", "Create them with `tailspan migrate`")
    if code in _NO_ACCESS:
        return UserError(
            f"ClickHouse at {url} refused the login",
            "Put user and password, or any name and a token, into the address: http://USER:PASSWORD@HOST",
        )
    if code == _NO_MEMORY:
        return UserError(
            f"{name} needs more memory than the ClickHouse at {url} has for a query",
            "Ask for a shorter window or one --service or --model, and leave --exact out",
        )
    return UserError(f"ClickHouse rejected {name}: {first_sentence(str(error))}", "Correct the query or its parameters")


def error_code(error: Exception) -> int | None:
    """Return ClickHouse's error number, if the error carries one."""
    code = getattr(error, "code", None)
    if isinstance(code, int):
        return code
    _, found, rest = str(error).partition("Code: ")
    digits = rest.split(".")[0].strip() if found else ""
    return int(digits) if digits.isdigit() else None


def first_sentence(message: str) -> str:
    """Shorten a ClickHouse exception to one line without its version and stack trace."""
    text = message.partition("DB::Exception: ")[2] or message
    line = " ".join(text.split())
    for end in (" (version", ". (", ": While ", " Stack trace"):
        line = line.partition(end)[0]
    return line.rstrip(".")[:300]
