"""What a collector says about itself: the state of its spools, and whether ClickHouse answers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tailspan_collector.metrics import Metrics
from tailspan_collector.signals import LOGS, TRACES
from tailspan_collector.spool import Spool
from tailspan_collector.status import ClickHouseProbe, StatusReader
from tests.support.collector import wait_until


def test_the_status_follows_the_spools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is full, too old, without disk or shutting down is not ready, says so, and spares the other signals."""
    metrics = Metrics()
    spools = [Spool(tmp_path / signal.name, signal, 4096, 3600, metrics) for signal in (TRACES, LOGS)]
    probe = ClickHouseProbe("http://clickhouse:8123", lambda: None)
    try:
        read = StatusReader(spools, 4096, 3600, tmp_path, probe)
        spools[0].append(b"x" * 5000)
        full, fine = read().spools
        assert (full.signal, full.takes_data, fine.takes_data) == ("traces", False, True)
        assert full.unread_bytes >= 5000
        assert "--max-spool-bytes is 4096" in full.reason
        time.sleep(0.05)
        (too_old, _) = StatusReader(spools, 1 << 30, 0.01, tmp_path, probe)().spools
        assert "--max-spool-seconds is 0.01" in too_old.reason
        with monkeypatch.context() as patch:
            patch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
            assert "only 1000 bytes are free" in read().spools[1].reason
        assert read().disk_free_bytes > 0
        read.is_closing = True
        assert not read().ready
        assert "shutting down" in read().problems[1]
    finally:
        for spool in spools:
            spool.close()


def test_the_probe_tells_when_clickhouse_goes_and_comes(caplog: pytest.LogCaptureFixture) -> None:
    """The state follows ClickHouse within an interval, credentials are left out, and each change is one log line."""
    reason: list[str] = []

    def ping() -> None:
        if reason:
            raise ConnectionError(f"http://me:hunter22@clickhouse:8123 {reason[0]}\nmore")

    probe = ClickHouseProbe("http://me:hunter22@clickhouse:8123", ping, interval_s=0.02)
    assert probe.state().error == "not asked yet"
    probe.start()
    try:
        assert wait_until(lambda: probe.state().answers, bool, 5)
        reason.append("refused")
        assert not wait_until(lambda: probe.state().answers, lambda answers: not answers, 5)
        time.sleep(0.1)
        state = probe.state()
        reason.clear()
        assert wait_until(lambda: probe.state().answers, bool, 5)
    finally:
        probe.stop()
    assert state.endpoint == "http://clickhouse:8123"
    assert state.error == "http://clickhouse:8123 refused"
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "hunter22" not in caplog.text
