"""`tailspan collector` writes to a ClickHouse server with the same writer, and waits for it when it is away."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import clickhouse_connect
import pytest

from tests.support.collector import RunningCollector, wait_until
from tests.support.otlp_messages import request_with_stages

SERVER = Path(__file__).parents[1] / "support" / "clickhouse_server.py"


class ServerProcess:
    """A ClickHouse that takes inserts over HTTP: chDB behind a small server, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0

    def start(self) -> None:
        (self.folder / "port").unlink(missing_ok=True)
        command = [sys.executable, str(SERVER), str(self.folder), str(self.port)]
        self.process = subprocess.Popen(command, cwd=self.folder)
        assert wait_until((self.folder / "port").exists, bool, 20)
        self.port = int((self.folder / "port").read_text())

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def count(self, table: str, what: str = "count()") -> int:
        with clickhouse_connect.get_client(dsn=self.url) as client:
            return int(client.query(f"select {what} from tailspan.{table}").first_row[0])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A running server; TAILSPAN_TEST_CLICKHOUSE_URL is for tests against a real one, see `test_real_server`."""
    folder = tmp_path / "server"
    folder.mkdir()
    server = ServerProcess(folder)
    server.start()
    yield server
    server.stop()


class ServerCollector(RunningCollector):
    """`tailspan collector` instead of `tailspan up`."""

    def __init__(self, data: Path, url: str) -> None:
        super().__init__(data, "--batch-seconds", "0.1")
        self.clickhouse_url = url

    def command(self) -> list[str]:
        words = [sys.executable, "-m", "tailspan", "collector", "--data", str(self.data)]
        return [*words, "--clickhouse", self.clickhouse_url, "--otlp-port", str(self.otlp_port), *self.arguments]


def test_spans_reach_the_server_once_though_it_goes_away(tmp_path: Path, server: ServerProcess) -> None:
    """What comes while the server is down is stored when it is back; poison is rejected; everything is there once."""
    with ServerCollector(tmp_path / "data", server.url) as collector:
        collector.export(*(request_with_stages(2) for _ in range(5)))
        assert wait_until(lambda: server.count("spans"), lambda n: n >= 30) == 30
        server.stop()
        collector.export(*(request_with_stages(2) for _ in range(5)), b"\x0a\x07\x12\x05\x12\x03\x0a\x64x")
        wait_until(lambda: collector.output, lambda text: "does not take the batch" in text, 20)
        server.start()
        assert wait_until(lambda: server.count("spans"), lambda n: n >= 60) == 60
        assert wait_until(lambda: server.count("rejects"), bool) == 1
        assert collector.stop() == 0
    assert server.count("spans") == 60
    assert server.count("traces", "sum(span_count)") == 60
    assert server.count("stage_minutes", "sum(count)") == 80


@pytest.mark.skipif("TAILSPAN_TEST_CLICKHOUSE_URL" not in os.environ, reason="TAILSPAN_TEST_CLICKHOUSE_URL is not set")
def test_real_server(tmp_path: Path) -> None:
    """The same against a real ClickHouse server, if one is given by TAILSPAN_TEST_CLICKHOUSE_URL."""
    url = os.environ["TAILSPAN_TEST_CLICKHOUSE_URL"]
    service = tmp_path.name
    with ServerCollector(tmp_path / "data", url) as collector:
        collector.export(*(request_with_stages(2, service) for _ in range(5)))
        collector.stop()
    with clickhouse_connect.get_client(dsn=url) as client:
        query = "select count() from tailspan.spans where service = {s:String}"
        assert client.query(query, parameters={"s": service}).first_row == (30,)
