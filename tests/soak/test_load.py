"""The benchmarks' load is what they say it is: a figure per record means nothing when the count is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.workload import RECORDS_OF_A_REQUEST, SPANS_OF_A_REQUEST, Traffic
from tailspan import attributes as attr
from tailspan.agent.join import Joiner
from tailspan.agent.ledger import ledger
from tailspan.agent.worker import WorkerRings
from tailspan.recorder import process
from tailspan.recorder.layout import Kind
from tailspan.recorder.reader import RingReader
from tailspan.settings import WORKER_DIR, Settings

ONCE = (Kind.STRING, Kind.STEP)
"""Not a request's own records."""


def test_a_request_of_the_load_has_its_records_and_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are counted in the ring, spans by what the agent makes of them."""
    monkeypatch.setenv(WORKER_DIR, str(tmp_path))
    process.start(Settings.from_environment())
    traffic = Traffic()
    for _ in range(5):
        traffic.whole()
    process.close()
    (path,) = tmp_path.glob("*.ring")
    reader = RingReader(path)
    assert reader.read() == []
    kinds = [int.from_bytes(slot[:2], "little") for slot in reader.read()]
    assert sum(kind not in ONCE for kind in kinds) == 5 * RECORDS_OF_A_REQUEST
    reader.close()


def test_a_request_of_the_load_has_all_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the load is dropped or unattributed."""
    monkeypatch.setenv(WORKER_DIR, str(tmp_path))
    process.start(Settings.from_environment())
    Traffic().whole()
    process.close()
    rings, joiner = WorkerRings(tmp_path), Joiner()
    rings.discover()
    for _ in range(2):
        for pid, events in rings.read():
            joiner.feed(events, pid)
    requests, steps = joiner.end_pass(final=True)
    (account,) = filter(None, map(ledger, requests))
    assert 1 + len(account.stages) == SPANS_OF_A_REQUEST
    assert len(steps) == 2
    assert account.request.attributes[attr.GEN_AI_INPUT_TOKENS] == 64
