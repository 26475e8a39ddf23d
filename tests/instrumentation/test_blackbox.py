"""`tailspan blackbox`: the last moments of a dead worker, from its ring files alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailspan import cli
from tailspan.agent.blackbox import examine
from tailspan.settings import WORKER_DIR

WORKER = """
import os, signal
from tailspan.recorder import Engine, begin_request, now_ns, process
from tailspan.settings import Settings
process.start(Settings.from_environment())
engine = Engine("transformers", "SmolLM2")
requests = []
for number in range(3):
    request = begin_request("generate", now_ns(), f"00-{number + 1:032x}-{7:016x}-01")
    request.text("gen_ai.response.id", f"req-{number}")
    engine.queued(request.key, now_ns(), 10)
    requests.append(request)
for step in range(1, STEPS):
    begin = now_ns()
    if step == 1:
        engine.join(requests[0].key, step, begin)
        engine.join(requests[1].key, step, begin)
    engine.step(step, begin, now_ns(), requests=2, prefill_tokens=0, decode_tokens=2, waiting=1)
    if step == 1:
        engine.first_token(requests[0].key, step, now_ns())
        engine.first_token(requests[1].key, step, now_ns())
    if step == 2:
        engine.finish(requests[1].key, step, now_ns(), 2)
        requests[1].end(now_ns())
os.kill(os.getpid(), signal.SIGKILL)
"""


def crash(directory: Path, steps: int) -> None:
    """Let a worker record into the folder and die."""
    env = os.environ | {WORKER_DIR: str(directory), "TAILSPAN_RING_RECORDS": "256"}
    subprocess.run([sys.executable, "-c", WORKER.replace("STEPS", str(steps))], env=env, check=False)


def test_it_names_every_open_request_its_stage_and_the_last_step(tmp_path: Path) -> None:
    """One decodes, one waits; the finished one is not listed; the engine's last batch is there."""
    crash(tmp_path, 50)
    (report,) = examine(tmp_path)
    assert [(request.request_id, request.stage) for request in report.open_requests] == [
        ("req-0", "decode"),
        ("req-2", "queue"),
    ]
    assert report.open_requests[0].trace_id == f"{1:032x}"
    (engine,) = report.engines
    assert (engine.model, engine.last_step, engine.requests, engine.waiting) == ("SmolLM2", 49, 2, 1)


def test_reading_changes_nothing(tmp_path: Path) -> None:
    """The files are evidence: byte for byte the same afterwards."""
    crash(tmp_path, 50)
    (path,) = tmp_path.glob("*.ring")
    before = path.read_bytes()
    assert examine(tmp_path) == examine(tmp_path)
    assert path.read_bytes() == before


def test_what_a_full_ring_still_holds_can_be_read(tmp_path: Path) -> None:
    """Without an agent the newest records are dropped and counted; the kept ones still tell."""
    crash(tmp_path, 1000)
    (report,) = examine(tmp_path)
    assert report.records == 256
    assert report.dropped_records > 700
    assert report.open_requests[0].request_id == "req-0"


def test_the_command_prints_a_table_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder of all workers may be given too."""
    worker = tmp_path / "worker-1"
    worker.mkdir()
    crash(worker, 20)
    assert cli.main(["blackbox", str(tmp_path)]) == 0
    assert "req-2" in capsys.readouterr().out
    assert cli.main(["blackbox", str(worker), "--format", "json"]) == 0
    (process,) = json.loads(capsys.readouterr().out)["processes"]
    assert process["open_requests"][0]["stage"] == "decode"


def test_a_folder_without_rings_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and what to give instead; a damaged ring is named."""
    assert cli.main(["blackbox", str(tmp_path)]) == 2
    assert "holds no ring" in capsys.readouterr().err
    (tmp_path / "1-0.ring").write_bytes(b"damaged")
    assert cli.main(["blackbox", str(tmp_path)]) == 2
    assert "1-0.ring" in capsys.readouterr().err
