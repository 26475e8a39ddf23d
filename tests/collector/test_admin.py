"""The admin port: alive, ready, and metrics that a real Prometheus reads."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tailspan.errors import UserError
from tailspan_collector.admin import AdminServer
from tailspan_collector.metrics import Metrics
from tailspan_collector.status import ClickHouseProbe, ClickHouseState, SpoolState, Status
from tests.support.collector import wait_until
from tests.support.prometheus import Prometheus

WELL = Status(
    (SpoolState("traces", True, "", 10, 4096, 0.5, 86400.0), SpoolState("logs", True)),
    ClickHouseState("http://clickhouse:8123", True),
    50 << 30,
)
FULL = replace(WELL, spools=(replace(WELL.spools[0], takes_data=False, reason="4096 bytes wait"), WELL.spools[1]))
DOWN = replace(WELL, clickhouse=ClickHouseState("http://clickhouse:8123", False, "Connection refused"))


class Admin:
    """An admin server whose status the test chooses."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.status: Callable[[], Status] = lambda: WELL
        self.server = AdminServer(("127.0.0.1", 0), self.metrics, lambda: self.status())
        self.server.start()
        self.url = f"http://127.0.0.1:{self.server.port}"

    def get(self, path: str, **headers: str) -> httpx.Response:
        """Ask it."""
        return httpx.get(f"{self.url}{path}", headers=headers, timeout=10)


@pytest.fixture
def admin() -> Iterator[Admin]:
    """A running admin server."""
    running = Admin()
    yield running
    running.server.stop()


def _fail() -> Status:
    raise OSError("spool folder vanished")


def test_a_full_spool_is_alive_and_not_ready(admin: Admin) -> None:
    """/readyz is 503 and says which signal and why, while /healthz stays 200: a restart would not help."""
    assert admin.get("/readyz").status_code == 200
    admin.status = lambda: FULL
    answer = admin.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["problems"] == ["the spool of traces takes no data: 4096 bytes wait"]
    assert admin.get("/healthz").status_code == 200


def test_clickhouse_down_is_said_and_stays_ready(admin: Admin) -> None:
    """The spool takes data while ClickHouse is away, so that senders must not be turned elsewhere."""
    admin.status = lambda: DOWN
    answer = admin.get("/readyz")
    assert answer.status_code == 200
    body = answer.json()
    assert body["ready"] is True
    assert body["clickhouse"]["answers"] is False
    assert "Connection refused" in body["problems"][0]
    assert "tailspan_collector_clickhouse_up 0.0" in admin.get("/metrics").text


def test_details_are_numbers_of_each_spool(admin: Admin) -> None:
    """What an SRE asks first is in the body: unread, limit and lag by signal, free disk, version."""
    body = admin.get("/readyz").json()
    assert body["spools"][0] == {
        "signal": "traces", "takes_data": True, "reason": "", "unread_bytes": 10, "limit_bytes": 4096,
        "lag_seconds": 0.5, "limit_seconds": 86400.0,
    }  # fmt: skip
    assert body["disk_free_bytes"] == 50 << 30
    assert body["version"]
    assert body["uptime_seconds"] >= 0


@pytest.mark.parametrize("status", [_fail, lambda: time.sleep(5)], ids=["raises", "hangs"])
def test_a_status_that_fails_or_hangs_is_not_ready(
    admin: Admin, status: Callable[[], Status], monkeypatch: pytest.MonkeyPatch
) -> None:
    """/readyz answers 503 in time instead of failing with the thing that it reports on; no inner text leaks."""
    monkeypatch.setattr("tailspan_collector.admin._STATUS_S", 0.2)
    admin.status = status
    began = time.monotonic()
    answer = admin.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["ready"] is False
    assert "vanished" not in answer.text
    assert time.monotonic() - began < 3


def test_a_scrape_survives_a_status_that_fails(admin: Admin) -> None:
    """Counters are shown and `ready` is 0, since a failing scrape would hide everything."""
    admin.metrics.refused.labels("traces").inc(3)
    admin.status = _fail
    text = admin.get("/metrics").text
    assert "tailspan_collector_ready 0.0" in text
    assert 'tailspan_collector_refused_requests_total{signal="traces"} 3.0' in text


@pytest.mark.parametrize(
    ("accept", "is_openmetrics"),
    [
        ("*/*", False),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", False),
        ("text/plain;version=one", False),
        ("application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75", True),
        ("application/openmetrics-text;version=99,text/plain", True),
        ("Application/OpenMetrics-Text;version=zero;;=", True),
    ],
)
def test_the_format_is_the_one_asked_for(admin: Admin, accept: str, is_openmetrics: bool) -> None:
    """Prometheus' text format, or OpenMetrics 1.0.0 where that is asked for; an odd version breaks nothing."""
    admin.metrics.lag_seconds.labels("traces").set(2.5)
    answer = admin.get("/metrics", Accept=accept)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(
        "application/openmetrics-text; version=1.0.0" if is_openmetrics else "text/plain; version=0.0.4"
    )
    names = {family.name for family in (parse_openmetrics if is_openmetrics else parse_text)(answer.text)}
    assert {"tailspan_collector_lag_seconds", "process_resident_memory_bytes", "process_open_fds"} <= names


def test_the_page_has_cpu_memory_files_and_version(admin: Admin) -> None:
    """The process' own cost is beside the counters; a second server on the same counters shows the same."""
    text = admin.get("/metrics").text
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_max_fds"):
        assert f"\n{name} " in text
    assert 'tailspan_collector_build_info{version="' in text
    second = AdminServer(("127.0.0.1", 0), admin.metrics, lambda: WELL)
    second.start()
    try:
        other = httpx.get(f"http://127.0.0.1:{second.port}/metrics").text
    finally:
        second.stop()
    assert "tailspan_collector_spool_limit_bytes" in other


def test_a_page_asked_for_with_gzip_is_small(admin: Admin) -> None:
    """Prometheus asks for gzip by default."""
    for number in range(50):
        admin.metrics.forwarded.labels(f"apm-{number}", "traces").inc()
    answer = admin.get("/metrics", **{"Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert "apm-49" in answer.text


def test_only_reading_is_possible(admin: Admin) -> None:
    """Another method is 405 and another path 404; a large body is not read."""
    assert httpx.post(f"{admin.url}/readyz", content=b"x" * 100_000).status_code == 405
    assert admin.get("/").status_code == 404
    assert admin.get("/debug/pprof").status_code == 404


def test_half_sent_requests_do_not_block_probes_and_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred clients that never finish their headers leave /healthz quick and lose their connection."""
    monkeypatch.setattr("tailspan_collector.admin._SLOW_S", 1.0)
    admin = Admin()
    half = [socket.create_connection(("127.0.0.1", admin.server.port)) for _ in range(100)]
    try:
        for client in half:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        began = time.monotonic()
        assert admin.get("/healthz").status_code == 200
        assert time.monotonic() - began < 1
        for client in half:
            client.settimeout(10)
            assert client.recv(100).startswith(b"HTTP/1.1 408")
    finally:
        for client in half:
            client.close()
        admin.server.stop()


def test_a_port_in_use_is_a_clear_error() -> None:
    """It names the port and the flag that changes it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"admin port {port}.*--admin-port"):
            AdminServer(("127.0.0.1", port), Metrics(), lambda: WELL)


def test_a_probe_that_hangs_does_not_hold_up_readiness(admin: Admin) -> None:
    """ClickHouse that takes the connection and never answers leaves /readyz quick."""
    release = threading.Event()
    probe = ClickHouseProbe("http://clickhouse:8123", release.wait, interval_s=0.01)
    probe.start()
    try:
        admin.status = lambda: replace(WELL, clickhouse=probe.state())
        began = time.monotonic()
        assert admin.get("/readyz").status_code == 200
        assert time.monotonic() - began < 2
    finally:
        release.set()
        probe.stop()


def test_a_real_prometheus_scrapes_it(admin: Admin, tmp_path: Path) -> None:
    """Prometheus finds the target up, with the counters, the gauges and the process' own metrics."""
    admin.metrics.requests.labels("traces", "grpc", "OK").inc(7)
    admin.metrics.insert_seconds.labels("traces").observe(0.07)
    target = json.dumps([{"targets": [f"127.0.0.1:{admin.server.port}"]}])
    config = (
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        f"scrape_configs: [{{job_name: tailspan, static_configs: {target}}}]\n"
    )
    with Prometheus(tmp_path, config) as prometheus:
        assert wait_until(lambda: prometheus.query("up{job='tailspan'} == 1"), bool, 30)
        assert set(prometheus.query("tailspan_collector_requests_total{code='OK'}").values()) == {7.0}
        assert set(prometheus.query("tailspan_collector_ready").values()) == {1.0}
        assert set(prometheus.query("sum(tailspan_collector_insert_seconds_bucket{le='0.1'})").values()) == {1.0}
        assert prometheus.query("process_resident_memory_bytes{job='tailspan'} > 1e6")
        (found,) = prometheus.api("targets")["activeTargets"]
        assert found["lastError"] == ""
