"""ClickHouse's HTTP interface over the embedded engine, read-only: for the CLI, clickhouse-connect, curl and Grafana.

In: GET or POST / with the SQL in `?query=`, in the body, or both; `param_NAME` parameters; settings as URL arguments.
Out: the result in the format asked for; errors as ClickHouse sends them, with X-ClickHouse-Exception-Code.
GET /ping answers `Ok.`. Each query runs in a thread on a handle of its own, so queries run beside inserts.
Sessions are accepted and have no state. A result is sent as a whole, not in blocks.
Memory: a query gets half of what ClickHouse may take, so that inserts go on, unless its SETTINGS say otherwise.
"""

from __future__ import annotations

import gzip
import re
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from email.parser import BytesParser
from typing import Any

import lz4.frame  # type: ignore[import-untyped]
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tailspan_collector.access import Access
from tailspan_collector.embedded import Engine
from tailspan_collector.guard import SqlRefused, check, check_setting, forbidden_calls

_TRANSPORT = frozenset(
    {
        "query", "database", "default_format", "user", "password", "compress", "decompress", "session_id",
        "session_timeout", "session_check", "query_id", "quota_key", "buffer_size", "wait_end_of_query",
        "client_protocol_version", "role", "http_headers_progress_interval_ms", "send_progress_in_http_headers",
        "enable_http_compression", "stacktrace", "cancel_http_readonly_queries_on_client_close",
    }
)  # fmt: skip
_CODE = re.compile(r"Code: (\d+)")
_LEAST_COMPRESSED = 4096
_UNAUTHENTICATED = "Code: 516. DB::Exception: Give a token of --tokens-file as password. (AUTHENTICATION_FAILED)"
_STATUS = {
    "516": 401,
    "60": 404,
    "81": 404,
    "62": 400,
    "47": 400,
    "36": 400,
    "46": 400,
    "115": 400,
    "164": 403,
    "457": 400,
}


@dataclass(frozen=True, slots=True)
class Query:
    """One query as it came over HTTP."""

    sql: str
    arguments: Mapping[str, str]
    default_format: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The bytes of a result and the headers that describe it."""

    body: bytes
    headers: dict[str, str]


def run_query(engine: Engine, forbidden: frozenset[str], query: Query, memory_bytes: int) -> Answer:
    """Run one query that reads and calls nothing forbidden, in so much memory unless it says otherwise.

    Raises:
        SqlRefused: it does more than read.
        RuntimeError: ClickHouse's error, with its code in the text.
    """
    statement = check(query.sql, forbidden)
    settings = [("max_memory_usage", str(memory_bytes)), *query.arguments.items(), *statement.settings]
    settings = [(name, value) for name, value in settings if name not in _TRANSPORT and not name.startswith("param_")]
    parameters = {name[6:]: value for name, value in query.arguments.items() if name.startswith("param_")}
    handle = engine.connect()
    try:
        handle.query(f"use {_identifier(query.arguments.get('database') or 'default')}")
        for name, value in settings:
            check_setting(name)
            handle.query(f"set {name} = {_string(value)}")
        handle.query(f"set readonly = {2 if statement.is_settings_query else 1}")
        started = time.monotonic_ns()
        result = handle.query(statement.sql, query.default_format, params=parameters)
        summary = (
            f'{{"read_rows":"{result.rows_read()}","read_bytes":"{result.bytes_read()}",'
            f'"elapsed_ns":"{time.monotonic_ns() - started}"}}'
        )
        body = result.bytes() or b""
    finally:
        handle.close()
    headers = {"X-ClickHouse-Summary": summary}
    if statement.output_format is None:
        headers["X-ClickHouse-Format"] = query.default_format
    return Answer(body, headers)


def build_app(engine: Engine, access: Access | None = None) -> Starlette:
    """Return the ASGI application; without `access` everybody may read."""

    forbidden = forbidden_calls(row[0] for row in engine.rows("select name from system.table_functions"))
    half = "select intDiv(toUInt64(value), 2) from system.server_settings where name = 'max_server_memory_usage'"
    memory_bytes = int(engine.rows(half)[0][0])

    async def ping(_: Request) -> Response:
        return Response("Ok.\n", media_type="text/plain")

    async def root(request: Request) -> Response:
        arguments = dict(request.query_params)
        body = await request.body()
        if request.method in ("GET", "HEAD") and "query" not in arguments:
            return await ping(request)
        if access is not None and not access.allows(request.headers, arguments.get("password", "")):
            return _failure(RuntimeError(_UNAUTHENTICATED), {"WWW-Authenticate": 'Bearer realm="tailspan"'})
        headers = {"X-ClickHouse-Query-Id": arguments.get("query_id") or str(uuid.uuid4())}
        headers |= {"X-ClickHouse-Timezone": "UTC", "X-ClickHouse-Server-Display-Name": "tailspan"}
        try:
            query = _read_query(request, arguments, body)
            answer = await run_in_threadpool(run_query, engine, forbidden, query, memory_bytes)
        except (SqlRefused, RuntimeError, ValueError) as error:
            return _failure(error, headers)
        headers |= answer.headers
        content, encoding = _compress(answer.body, request)
        if encoding:
            headers["Content-Encoding"] = encoding
        return Response(content, headers=headers, media_type="text/plain; charset=UTF-8")

    return Starlette(
        routes=[
            Route("/ping", ping, methods=["GET"]),
            Route("/", root, methods=["GET", "POST"]),
        ]
    )


def _read_query(request: Request, arguments: dict[str, str], body: bytes) -> Query:
    if request.headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    content_type = request.headers.get("content-type", "")
    if content_type.startswith("multipart/form-data"):
        arguments |= _read_form(content_type, body)
        body = b""
    sql = "\n".join(part for part in (arguments.get("query", ""), body.decode()) if part)
    default = arguments.get("default_format") or request.headers.get("x-clickhouse-format") or "TabSeparated"
    if "database" not in arguments and "x-clickhouse-database" in request.headers:
        arguments["database"] = request.headers["x-clickhouse-database"]
    return Query(sql, arguments, default)


def _read_form(content_type: str, body: bytes) -> dict[str, str]:
    message = BytesParser().parsebytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
    fields = {}
    for part in message.walk():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(content, bytes):
            fields[name] = content.decode()
    return fields


def _failure(error: Exception, headers: dict[str, str]) -> Response:
    text = str(error)
    found = _CODE.search(text)
    code = found[1] if found else "1002"
    if not found:
        text = f"Code: 1002. DB::Exception: {text}. (UNKNOWN_EXCEPTION)"
    headers["X-ClickHouse-Exception-Code"] = code
    return Response(f"{text}\n", _STATUS.get(code, 500), headers, "text/plain; charset=UTF-8")


def _compress(body: bytes, request: Request) -> tuple[bytes, str | None]:
    accepted = request.headers.get("accept-encoding", "")
    if request.query_params.get("enable_http_compression") != "1" or len(body) < _LEAST_COMPRESSED:
        return body, None
    if "lz4" in accepted:
        return lz4.frame.compress(body), "lz4"
    if "gzip" in accepted:
        return gzip.compress(body, 1), "gzip"
    return body, None


def _identifier(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("`", "\\`")
    return f"`{escaped}`"


def _string(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


class HttpServer:
    """The application on a socket, in a thread."""

    def __init__(self, engine: Engine, listener: socket.socket, access: Access | None = None) -> None:
        self._listener = listener
        self.port: int = listener.getsockname()[1]
        config = uvicorn.Config(
            build_app(engine, access),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=5,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def _run(self) -> Any:
        self._server.run(sockets=[self._listener])

    def start(self) -> None:
        """Begin to answer; return when it does."""
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.005)

    def stop(self) -> None:
        """Let the queries under way end, then close the port."""
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()
