"""`tailspan doctor --collector`: each trouble of a running collector is found and has a remedy."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tailspan import cli
from tailspan_collector.admin import AdminServer
from tailspan_collector.metrics import Metrics
from tailspan_collector.status import ClickHouseState, SpoolState, Status

GIB = 1 << 30
WELL = Status(
    tuple(SpoolState(signal, True, "", 0, 4 * GIB, 0.0, 86400.0) for signal in ("traces", "metrics", "logs")),
    ClickHouseState("http://clickhouse:8123", True),
    100 * GIB,
)


class Patient:
    """A collector's admin port with made-up counters."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.status: Status | None = WELL
        for signal in ("traces", "metrics", "logs"):
            self.metrics.requests.labels(signal, "grpc", "OK").inc(1200)
            self.metrics.spooled.labels(signal).inc(1200)
            self.metrics.written.labels(signal).inc(1200)
            self.metrics.unread_bytes.labels(signal).set(0)
            self.metrics.lag_seconds.labels(signal).set(0)
        self.server = AdminServer(("127.0.0.1", 0), self.metrics, self._read)
        self.server.start()
        self.url = f"http://127.0.0.1:{self.server.port}"

    def _read(self) -> Status:
        if self.status is None:
            raise OSError("no status")
        return self.status


@pytest.fixture
def patient() -> Iterator[Patient]:
    """A healthy one, which a test makes ill."""
    running = Patient()
    yield running
    running.server.stop()


def test_a_healthy_collector_is_all_ok(patient: Patient, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0, with version, memory, lag, requests and room; a resend and a forward are no trouble."""
    patient.metrics.resent.labels("traces").inc(4)
    patient.metrics.forwarded.labels("apm", "traces").inc(50)
    patient.metrics.insert_seconds.labels("traces").observe(0.08)
    assert cli.main(["doctor", "--collector", patient.url]) == 0
    shown = capsys.readouterr().out
    assert "!!" not in shown
    assert f"{patient.url} is alive: version" in shown
    assert "1,200 requests taken, 1,200 stored, 4 resent and recognised; lag 0.0 s, 0 B of 4 GiB unread" in shown
    assert "http://clickhouse:8123 answers" in shown
    assert "to apm" in shown
    assert "100 GiB free, the spool may take 12 GiB more" in shown
    assert "80 ms in the mean" in shown


def _spool_full(patient: Patient) -> None:
    full = replace(WELL.spools[0], takes_data=False, reason="4 GiB wait for ClickHouse", unread_bytes=4 * GIB)
    patient.status = replace(WELL, spools=(full, *WELL.spools[1:]))


def _clickhouse_down(patient: Patient) -> None:
    patient.status = replace(WELL, clickhouse=ClickHouseState("http://clickhouse:8123", False, "Connection refused"))


TROUBLES: dict[str, tuple[Callable[[Patient], object], str, str]] = {
    "full spool": (_spool_full, "takes no traces: 4 GiB wait for ClickHouse", "--max-spool-bytes"),
    "clickhouse down": (_clickhouse_down, "does not answer: Connection refused", "--clickhouse-url"),
    "lag": (lambda it: it.metrics.lag_seconds.labels("logs").set(7200), "lag 2.0 h", "--inserts-in-flight"),
    "backlog": (lambda it: it.metrics.unread_bytes.labels("traces").set(3 * GIB), "3 GiB of 4 GiB", "more collectors"),
    "refused": (lambda it: it.metrics.refused.labels("traces").inc(3), "3 requests refused", "--max-spool-bytes"),
    "rejects": (lambda it: it.metrics.rejected.labels("metrics").inc(), "1 request could not be", "`tailspan rejects`"),
    "corrupt": (lambda it: it.metrics.corrupt_bytes.labels("traces").inc(2048), "2 KiB of the spool", "check it"),
    "insert errors": (
        lambda it: it.metrics.inserts.labels("traces", "transient").inc(5), "errors: transient 5", "collector's log",
    ),
    "drops": (
        lambda it: it.metrics.forward_dropped.labels("apm", "traces", "behind").inc(9), "not sent: 9 behind",
        "most_behind_bytes",
    ),
    "disk": (lambda it: setattr(it, "status", replace(WELL, disk_free_bytes=5 * GIB)), "5 GiB free", "more room"),
}  # fmt: skip


@pytest.mark.parametrize("trouble", TROUBLES)
def test_each_trouble_has_a_remedy(patient: Patient, trouble: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, one line marked as trouble, and what to do below it; all else stays ok."""
    spoil, text, remedy = TROUBLES[trouble]
    spoil(patient)
    assert cli.main(["doctor", "--collector", patient.url]) == 2
    lines = capsys.readouterr().out.splitlines()
    (found,) = [index for index, line in enumerate(lines) if line.startswith("!!")]
    assert text in lines[found]
    assert remedy in lines[found + 1]


def test_answers_other_than_ok_are_shown(patient: Patient, capsys: pytest.CaptureFixture[str]) -> None:
    """A sender's mistakes are counted by code; they are not the collector's trouble."""
    patient.metrics.requests.labels("traces", "http", "400").inc(17)
    patient.metrics.requests.labels("traces", "grpc", "UNAUTHENTICATED").inc(2)
    assert cli.main(["doctor", "--collector", patient.url]) == 0
    assert "answers other than OK: 400 17, UNAUTHENTICATED 2" in capsys.readouterr().out


def test_a_status_that_cannot_be_read_is_trouble(patient: Patient, capsys: pytest.CaptureFixture[str]) -> None:
    """A collector whose status fails still shows its counters, and is not called well."""
    patient.status = None
    assert cli.main(["doctor", "--collector", patient.url]) == 2
    shown = capsys.readouterr().out
    assert "the status cannot be read" in shown
    assert "is alive" in shown


def test_nothing_there_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, the reason, and the command."""
    assert cli.main(["doctor", "--collector", "http://127.0.0.1:9"]) == 2
    shown = capsys.readouterr().out
    assert "http://127.0.0.1:9 does not answer (" in shown
    assert "tailspan up" in shown


@pytest.mark.parametrize("url", ["localhost:13133", "file:///etc/passwd", "http://"])
def test_a_wrong_address_is_an_error(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Only http addresses are asked; the message shows a right one."""
    assert cli.main(["doctor", "--collector", url]) == 2
    assert "http://127.0.0.1:13133" in capsys.readouterr().err


def test_a_host_without_the_collectors_packages_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker's host has only the light dependencies: one line with the extra, exit code 2."""
    monkeypatch.delitem(sys.modules, "tailspan_collector.doctor", raising=False)
    monkeypatch.delitem(sys.modules, "tailspan_collector.scrape", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client.parser", None)
    assert cli.main(["doctor", "--collector"]) == 2
    assert "pip install 'tailspan[collector]'" in capsys.readouterr().err


def test_the_running_collector_is_found_by_its_data_folder(
    patient: Patient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without an address, `endpoints.json` of TAILSPAN_DATA or ./.tailspan says where the admin port is."""
    folder = tmp_path / ".tailspan"
    folder.mkdir()
    (folder / "endpoints.json").write_text(json.dumps({"pid": os.getpid(), "admin": patient.url}))
    monkeypatch.delenv("TAILSPAN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["doctor", "--collector"]) == 0
    monkeypatch.chdir("/")
    monkeypatch.setenv("TAILSPAN_DATA", str(folder))
    assert cli.main(["doctor", "--collector"]) == 0
    assert capsys.readouterr().out.count(f"{patient.url} is alive") == 2
