"""`tailspan collector` writes to a ClickHouse server with the same writer, and waits for it when it is away."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import clickhouse_connect
import pytest

from tests.support.collector import RunningCollector, wait_until
from tests.support.otlp_messages import request_with_stages
from tests.support.server_process import ServerProcess


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A running server; TAILSPAN_TEST_CLICKHOUSE_URL is for tests against a real one, see `test_real_server`."""
    with ServerProcess(tmp_path / "server") as server:
        yield server


class ServerCollector(RunningCollector):
    """`tailspan collector` instead of `tailspan up`."""

    def __init__(self, data: Path, url: str) -> None:
        super().__init__(data, "--batch-seconds", "0.1")
        self.clickhouse_url = url

    def command(self) -> list[str]:
        words = [sys.executable, "-m", "tailspan", "collector", "--data", str(self.data)]
        for name in ("otlp_port", "otlp_http_port", "admin_port"):
            words += [f"--{name.replace('_', '-')}", str(self.ports[name])]
        return [*words, "--clickhouse", self.clickhouse_url, *self.arguments]


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


def test_a_collector_starts_before_its_server(tmp_path: Path) -> None:
    """With ClickHouse down the collector comes up and takes spans, and stores them once when the server is there."""
    server = ServerProcess(tmp_path / "late")
    server.start().stop()
    with ServerCollector(tmp_path / "data", server.url) as collector:
        collector.export(*(request_with_stages(2) for _ in range(5)))
        assert wait_until(lambda: collector.output, lambda text: "is not reachable" in text, 20)
        with server:
            assert wait_until(lambda: collector.output, lambda text: "takes data" in text, 60)
            assert wait_until(lambda: server.count("spans"), lambda count: count >= 30) == 30
            assert collector.stop() == 0


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
