"""A ClickHouse HTTP server that takes inserts, on chDB, for tests of what needs a server: `python FILE FOLDER`.

It listens on a free port, which it writes to FOLDER/port. It has no fences: tests only. Run it in FOLDER, because chDB
keeps protobuf schemas that come as a setting in the current directory.

TEST_LOGIN=user:password or TEST_TOKEN=token make it ask for a login as ClickHouse does; TEST_SERVER_ID is what it says
to serverUUID(), which is zeros for every chDB.
"""

from __future__ import annotations

import base64
import gzip
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import chdb
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

INSERT = re.compile(rb"^\s*(insert into .*?)\s+format (\w+)[ \t]*(?:\n|$)", re.IGNORECASE | re.DOTALL)
NO_SETTINGS = {"query", "database", "session_id", "query_id", "wait_end_of_query", "client_protocol_version"}
NO_SETTINGS |= {"send_progress_in_http_headers", "http_headers_progress_interval_ms", "enable_http_compression"}


LOGIN, TOKEN, SERVER_ID = (os.environ.get(f"TEST_{name}") for name in ("LOGIN", "TOKEN", "SERVER_ID"))


def is_allowed(request: Request) -> bool:
    """Whether a request carries the login that this server wants."""
    given = request.headers.get("authorization", "")
    if TOKEN:
        return given == f"Bearer {TOKEN}"
    return not LOGIN or given == f"Basic {base64.b64encode(LOGIN.encode()).decode()}"


def run(folder: str, sql: bytes, body: bytes, settings: dict[str, str]) -> bytes:
    """Run one statement; an insert reads its data from `body`."""
    handle = chdb.connect(folder)
    try:
        for name, value in settings.items():
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            handle.query(f"set {name} = '{escaped}'")
        insert = INSERT.match(sql)
        if insert is None:
            result = handle.query((sql + b"\n" + body).decode(), "TSV").bytes()
            return result or b""
        file = os.memfd_create("insert")
        with os.fdopen(file, "wb") as stream:
            stream.write(sql[insert.end() :] + body)
            stream.flush()
            source = f"from infile '/proc/self/fd/{file}' format {insert[2].decode()}"
            handle.query(f"{insert[1].decode()} {source}")
        return b""
    finally:
        handle.close()


def build_app(folder: str) -> Starlette:
    """Return the ASGI application."""

    async def root(request: Request) -> Response:
        if not is_allowed(request):
            text = "Code: 516. DB::Exception: Authentication failed: password is incorrect. (AUTHENTICATION_FAILED)"
            return Response(text, 403, {"X-ClickHouse-Exception-Code": "516"})
        arguments: dict[str, Any] = dict(request.query_params)
        body = await request.body()
        if request.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        settings = {name: value for name, value in arguments.items() if name not in NO_SETTINGS}
        sql = arguments.get("query", "").encode()
        if not sql:
            sql, body = body, b""
        if SERVER_ID:
            sql = sql.replace(b"serverUUID()", f"'{SERVER_ID}'".encode())
        try:
            return Response(await run_in_threadpool(run, folder, sql, body, settings))
        except RuntimeError as error:
            code = re.search(r"Code: (\d+)", str(error))
            headers = {"X-ClickHouse-Exception-Code": code[1] if code else "1002"}
            return Response(str(error), 500, headers)

    async def ping(request: Request) -> Response:
        return Response("Ok.\n")

    return Starlette(routes=[Route("/ping", ping), Route("/", root, methods=["GET", "POST"])])


if __name__ == "__main__":
    home = Path(sys.argv[1])
    root_handle = chdb.connect(str(home / "clickhouse"))
    listener = socket.create_server(("127.0.0.1", int(sys.argv[2])))
    (home / "port.new").write_text(str(listener.getsockname()[1]))
    (home / "port.new").rename(home / "port")
    config = uvicorn.Config(build_app(str(home / "clickhouse")), log_config=None, lifespan="off", ws="none")
    uvicorn.Server(config).run(sockets=[listener])
