"""`python -m benchmarks.clickhouse_endpoint FOLDER`: ClickHouse's HTTP interface over chDB, for one benchmark.

Runs as a process of its own, so that its work is in nobody's figure. Understands what clickhouse-connect and rotel send
(inserts with the query in the URL or in front of the data, LZ4 blocks, settings as parameters). Prints its port, then
serves until its standard input closes. Trusts everybody: loopback only, and for the length of a benchmark.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import chdb
import lz4.block  # type: ignore[import-untyped]

_INSERT = re.compile(r"\s*(insert\s+into\s.*?)\s+format\s+(\w+)\s*$", re.IGNORECASE | re.DOTALL)
_INSERT_WITH_DATA = re.compile(rb"\s*(insert\s+into\s.*?)\s+format\s+(\w+)[ \t]*\n", re.IGNORECASE | re.DOTALL)
_FORMAT = re.compile(r"\bformat\s+(\w+)\s*;?\s*$", re.IGNORECASE)
_TRANSPORT = frozenset(
    {
        *("query", "query_id", "database", "default_format", "user", "password", "role", "client_protocol_version"),
        *("compress", "decompress", "enable_http_compression", "session_id", "session_timeout", "wait_end_of_query"),
        *("http_headers_progress_interval_ms", "send_progress_in_http_headers"),
        *("async_insert", "wait_for_async_insert"),
    }
)
_BLOCK = struct.Struct("<16xBII")
_LZ4 = 0x82


def decompress(body: bytes) -> bytes:
    """Undo ClickHouse's block compression; checksums are not compared."""
    parts, position = [], 0
    while position < len(body):
        method, size, plain_size = _BLOCK.unpack_from(body, position)
        data = body[position + _BLOCK.size : position + 16 + size]
        parts.append(lz4.block.decompress(data, uncompressed_size=plain_size) if method == _LZ4 else data)
        position += 16 + size
    return b"".join(parts)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    path_of_database = ""

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer a ping or a query."""
        self._answer()

    do_POST = do_GET  # noqa: N815 (the base class's name)

    def _answer(self) -> None:
        url = urlsplit(self.path)
        parameters = dict(parse_qsl(url.query, keep_blank_values=True))
        body = self._body()
        if url.path == "/ping" or not (parameters or body):
            return self._reply(200, b"Ok.\n")
        if parameters.get("decompress") == "1":
            body = decompress(body)
        connection = chdb.connect(self.path_of_database)
        try:
            database = parameters.get("database") or self.headers.get("X-ClickHouse-Database") or "default"
            connection.query(f"use `{database}`")
            self._reply(200, self._run(connection, parameters, body))
        except Exception as error:
            code = re.search(r"Code: (\d+)", str(error))
            self._reply(500, str(error).encode(), code[1] if code else "1002")
        finally:
            connection.close()

    def _run(self, connection: Any, parameters: dict[str, str], body: bytes) -> bytes:
        settings = ", ".join(
            f"{name} = {_quoted(value)}" for name, value in parameters.items() if name not in _TRANSPORT
        )
        query = parameters.get("query", "")
        if insert := _INSERT.match(query):
            return _insert(connection, insert[1], insert[2], settings, body)
        if insert_with_data := _INSERT_WITH_DATA.match(body[:65536]):
            into, form = insert_with_data[1].decode(), insert_with_data[2].decode()
            return _insert(connection, into, form, settings, body[insert_with_data.end() :])
        query = f"{query}\n{body.decode()}".strip()
        form = _FORMAT.search(query)
        default = parameters.get("default_format") or self.headers.get("X-ClickHouse-Format") or "TabSeparated"
        result = connection.query(query, form[1] if form else default)
        return bytes(result.bytes() or b"") if result is not None else b""

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _reply(self, status: int, data: bytes, error_code: str | None = None) -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-ClickHouse-Timezone", "UTC")
        if error_code is not None:
            self.send_header("X-ClickHouse-Exception-Code", error_code)
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()


def _insert(connection: Any, into: str, form: str, settings: str, data: bytes) -> bytes:
    file = os.memfd_create("insert")
    try:
        with open(file, "wb", closefd=False) as stream:
            stream.write(data)
        clause = f" settings {settings}" if settings else ""
        connection.query(f"{into} from infile '/proc/self/fd/{file}'{clause} format {form}")
    finally:
        os.close(file)
    return b""


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def main() -> None:
    """Serve until standard input ends."""
    Handler.path_of_database = sys.argv[1]
    os.chdir(Path(sys.argv[1]).parent)  # where ClickHouse keeps protobuf schemas that came with an insert
    keep_open = chdb.connect(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
    server.shutdown()
    keep_open.close()
    os._exit(0)  # inserts that are under way are of no use to anybody


@contextmanager
def endpoint(folder: Path) -> Iterator[str]:
    """Run the endpoint for the length of the `with` block; give its URL."""
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "benchmarks.clickhouse_endpoint", str(folder / "clickhouse")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(child.stdout.readline())}"
        finally:
            child.stdin.close()


if __name__ == "__main__":
    main()
