"""`tailspan doctor`: what is wrong, and what to do about it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailspan import cli
from tests.support.otlp_sink import OtlpSink


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty runtime folder that the doctor looks into."""
    monkeypatch.setenv("TAILSPAN_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_a_healthy_set_up_is_all_ok(
    runtime: Path, sink: OtlpSink, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every hook of the installed engine is found and the endpoint answers: exit code 0."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.endpoint)
    assert cli.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "!!" not in shown
    assert "transformers" in shown
    assert f"{sink.endpoint} answers" in shown


def test_an_endpoint_that_does_not_answer_has_a_remedy(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and how to start a collector."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    assert cli.main(["doctor"]) == 2
    assert "tailspan up" in capsys.readouterr().out


def test_what_a_dead_worker_left_behind_is_found(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without worker and agent is named with the commands that read or send it; drops are counted."""
    worker = runtime / "worker-1"
    worker.mkdir()
    script = (
        "import os\n"
        "from tailspan.recorder import begin_request, now_ns, process\n"
        "from tailspan.settings import Settings\n"
        "process.start(Settings.from_environment())\n"
        "for _ in range(COUNT):\n"
        "    begin_request('generate', now_ns())\n"
        "os._exit(0)\n"
    )
    env = os.environ | {"TAILSPAN_WORKER_DIR": str(worker), "TAILSPAN_RING_RECORDS": "64"}
    subprocess.run([sys.executable, "-c", script.replace("COUNT", "5")], env=env, check=True)
    assert cli.main(["doctor"]) == 2
    shown = capsys.readouterr().out
    assert "worker-1: left behind" in shown
    assert "tailspan blackbox" in shown
    subprocess.run([sys.executable, "-c", script.replace("COUNT", "100")], env=env, check=True)
    cli.main(["doctor"])
    assert "whole requests, rings full" in capsys.readouterr().out
