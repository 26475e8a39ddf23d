"""`tailspan rejects`: what ClickHouse refused is listed, exported, and sent again, each once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tailspan_collector import rejects
from tailspan_collector.embedded import EmbeddedSink, Engine, Folder
from tailspan_collector.rejects import numbered
from tailspan_collector.rejects_cli import rejects_main
from tailspan_collector.signals import TRACES
from tailspan_collector.sink import Reject
from tailspan_collector.spool.interfaces import Received
from tests.support.collector import RunningCollector, wait_until
from tests.support.new_database import make_database
from tests.support.otlp_messages import request_with_stages

POISON = b"\x0a\x07\x12\x05\x12\x03\x0a\x64x"
PAYLOADS = {"good-1": request_with_stages(2), "good-2": request_with_stages(1)}


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[RunningCollector]:
    """A collector in whose database two requests lie that an older version could not store."""
    folder = Folder(tmp_path / "data")
    with Engine(make_database(folder.path / "clickhouse")) as engine:
        sink = EmbeddedSink(engine)
        for token, payload in PAYLOADS.items():
            received = Received(payload, "10.0.0.1:4242", time.time_ns())
            sink.reject(Reject(TRACES, received, 36, "Code: 36. DB::Exception: an \x1b[31mold defect. (X)", token))
    folder.close()
    with RunningCollector(tmp_path / "data", "--batch-seconds", "0.05") as collector:
        yield collector


def run(capsys: pytest.CaptureFixture[str], collector: RunningCollector, *words: str, code: int = 0) -> str:
    """Run `tailspan rejects` on the collector's data; return what it printed."""
    assert rejects_main([words[0], "--data", str(collector.data), *words[1:]]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def listed(capsys: pytest.CaptureFixture[str], collector: RunningCollector) -> list[dict[str, object]]:
    """Return what the list says, the oldest first."""
    found: list[dict[str, object]] = json.loads(run(capsys, collector, "list", "--format", "json"))
    return found[::-1]


def spans(collector: RunningCollector) -> int:
    """Return how many stored spans are those of the test's requests."""
    return int(collector.query("select count() from tailspan.spans where service = 'test'")[0][0])


def test_a_reject_is_listed_with_what_is_known(collector: RunningCollector, capsys: pytest.CaptureFixture[str]) -> None:
    """Time, sender, reason and size are there; what a sender wrote cannot steer the terminal."""
    for row in listed(capsys, collector):
        assert row["peer"] == "10.0.0.1:4242"
        assert row["signal"] == "traces"
        assert row["size"] in {len(payload) for payload in PAYLOADS.values()}
        assert row["replays"] == 0
    text = run(capsys, collector, "list", "--since", "1h")
    assert "an \N{REPLACEMENT CHARACTER}[31mold defect" in text
    assert "\x1b" not in text
    assert run(capsys, collector, "list", "--signal", "logs") == "no rejects\n"
    identity = str(listed(capsys, collector)[0]["id"])
    shown = run(capsys, collector, "show", identity[:8])
    assert identity in shown
    assert "scope_spans" in shown


def test_a_replay_stores_a_request_once(collector: RunningCollector, capsys: pytest.CaptureFixture[str]) -> None:
    """One replay stores the spans and is marked; a second one sends nothing; --again sends it once more."""
    first, second = (str(row["id"]) for row in listed(capsys, collector))
    assert "1 replayed" in run(capsys, collector, "replay", first[:10])
    sizes = {row["id"]: row["size"] for row in listed(capsys, collector)}
    expected = {len(payload): payload.count(b"tailspan.role") for payload in PAYLOADS.values()}
    one = expected[int(str(sizes[first]))]
    assert wait_until(lambda: spans(collector), lambda count: count >= one) == one
    assert [(row["id"] == first, row["replays"]) for row in listed(capsys, collector)] == [
        (row["id"] == first, int(row["id"] == first)) for row in listed(capsys, collector)
    ]
    assert "1 were replayed before" in run(capsys, collector, "replay", "--all")
    both = sum(expected.values())
    assert wait_until(lambda: spans(collector), lambda count: count >= both) == both
    assert "\n0 replayed" in f"\n{run(capsys, collector, 'replay', first).splitlines()[-1]}"
    run(capsys, collector, "replay", second, "--again")
    more = both + expected[int(str(sizes[second]))]
    assert wait_until(lambda: spans(collector), lambda count: count >= more) == more
    time.sleep(0.5)
    assert spans(collector) == more
    assert [row["replays"] for row in listed(capsys, collector)] == [
        2 if row["id"] == second else 1 for row in listed(capsys, collector)
    ]


def test_what_fails_again_is_a_new_reject(collector: RunningCollector, capsys: pytest.CaptureFixture[str]) -> None:
    """Poison that is replayed is refused again and listed anew; the old line stays marked."""
    collector.export(POISON)
    collector.wait_rows(3, "tailspan.rejects")
    poison = next(row for row in listed(capsys, collector) if row["size"] == len(POISON))
    run(capsys, collector, "replay", str(poison["id"]))
    collector.wait_rows(4, "tailspan.rejects")
    rows = listed(capsys, collector)
    assert [row["replays"] for row in rows if row["id"] == poison["id"]] == [1]
    again = [row for row in rows if row["id"] != poison["id"] and "10.0.0.1" not in str(row["peer"])]
    assert [row["replays"] for row in again] == [0]


def test_a_wrong_collector_gets_no_payload(
    collector: RunningCollector, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the mark does not arrive because the collector writes elsewhere, or there is none, nothing is replayed."""
    monkeypatch.setattr(rejects, "_SEND_S", 1.0)
    error = run(capsys, collector, "replay", "--all", "--endpoint", "http://127.0.0.1:1", code=2)
    assert "UNAVAILABLE" in error
    assert "nothing was replayed" in error
    assert [row["replays"] for row in listed(capsys, collector)] == [0, 0]


def test_requests_are_exported_as_they_came(
    collector: RunningCollector, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files hold the raw protobuf; a running collector need not be stopped for it."""
    run(capsys, collector, "export", "--all", "--to", str(tmp_path / "out"))
    assert {path.read_bytes() for path in (tmp_path / "out").iterdir()} == set(PAYLOADS.values())
    assert all(path.name.endswith(".traces.pb") for path in (tmp_path / "out").iterdir())


def test_rejects_are_listed_without_a_collector(
    collector: RunningCollector, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the collector stopped the data folder is opened itself."""
    collector.stop()
    assert len(listed(capsys, collector)) == 2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("replay",), "which rejects is not clear"),
        (("replay", "--all", "abcd"), "which rejects is not clear"),
        (("show", "ffffffff"), "there is no reject 'ffffffff'"),
        (("show", "xyz'"), "no id of a reject"),
        (("list", "--since", "soon"), "--since is 'soon'"),
        (("replay", "--all", "--endpoint", "ftp://x"), "no OTLP/gRPC address"),
    ],
)
def test_mistakes_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], reason: str
) -> None:
    """A mistake is one line that says what to do, with exit code 2."""
    make_database(tmp_path / "clickhouse")
    assert rejects_main([words[0], "--data", str(tmp_path), *words[1:]]) == 2
    assert reason in capsys.readouterr().err


def test_a_numbered_request_decodes_to_the_same() -> None:
    """The number of a replay is invisible to decoders and makes the bytes differ from each other."""
    payload = PAYLOADS["good-1"]
    first, second = numbered(payload, 1), numbered(payload, 2)
    assert len({payload, first, second}) == 3
    message = ExportTraceServiceRequest.FromString(first)
    message.DiscardUnknownFields()
    assert message == ExportTraceServiceRequest.FromString(payload)
