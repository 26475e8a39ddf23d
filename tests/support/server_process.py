"""A ClickHouse that takes inserts over HTTP, for tests: chDB behind a small server in its own process, and relays."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

import clickhouse_connect

from tests.support.collector import wait_until

SERVER = Path(__file__).with_name("clickhouse_server.py")


class ServerProcess:
    """See `clickhouse_server`; keywords are its variables without TEST_."""

    def __init__(self, folder: Path, **variables: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = 0
        self._environment = os.environ | {f"TEST_{name.upper()}": value for name, value in variables.items()}

    def start(self) -> Self:
        """Start it, on the port it had before."""
        (self.folder / "port").unlink(missing_ok=True)
        command = [sys.executable, str(SERVER), str(self.folder), str(self.port)]
        self.process = subprocess.Popen(command, cwd=self.folder, env=self._environment)
        assert wait_until((self.folder / "port").exists, bool, 20)
        self.port = int((self.folder / "port").read_text())
        return self

    def stop(self) -> None:
        """Stop it; data and port stay."""
        self.process.terminate()
        self.process.wait()

    @property
    def url(self) -> str:
        """Its address, also while it is down."""
        return f"http://127.0.0.1:{self.port}"

    def count(self, table: str, what: str = "count()") -> int:
        """Return one number from a table; 0 as long as there is no such table."""
        with clickhouse_connect.get_client(dsn=self.url) as client:
            if not client.command(f"exists table tailspan.{table}"):
                return 0
            return int(client.query(f"select {what} from tailspan.{table}").result_rows[0][0])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class Relay:
    """A port that passes on to another one, with TLS in front if there is a context; `cut` ends all it carries."""

    def __init__(self, target_port: int, tls: ssl.SSLContext | None = None) -> None:
        self._target_port, self._tls = target_port, tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Refuse new connections and break those that are open."""
        for end in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                near = self._tls.wrap_socket(near, server_side=True) if self._tls else near
                far = socket.create_connection(("127.0.0.1", self._target_port))
            except ssl.SSLError:
                continue
            except OSError:
                if self._listener.fileno() == -1:
                    return
                continue
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass
