"""The writer retries what may pass, isolates what cannot be decoded, and gives up on nothing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailspan_collector.errors import DataError, InsertError, TooLargeError, TransientError, UnclearError, classify
from tailspan_collector.metrics import Metrics
from tailspan_collector.signals import TRACES, Signal
from tailspan_collector.sink import Reject
from tailspan_collector.spool import Spool
from tailspan_collector.spool.records import Record, scan
from tailspan_collector.writer import Writer
from tests.support.spools import open_spool

Answer = Callable[[list[bytes], int], InsertError | None]


def requests_of(body: bytes) -> list[bytes]:
    """Return the requests of an insert."""
    if body == b"\0":
        return []
    return [item.received(body).payload for item in scan(body, 0, len(body), verify=True) if isinstance(item, Record)]


class ScriptedSink:
    """A target whose answers a test decides; it keeps what it took."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.calls = 0
        self.stored: list[bytes] = []
        self.rejects: list[Reject] = []
        self.tokens: list[str] = []

    def insert(self, signal: Signal, body: bytes, token: str) -> None:
        assert signal is TRACES
        payloads = requests_of(body)
        self.calls += 1
        if payloads:
            self.tokens.append(token)
        if (error := self.answer(payloads, self.calls)) is not None:
            raise error
        self.stored += payloads

    def reject(self, reject: Reject) -> None:
        self.rejects.append(reject)

    @property
    def rejected(self) -> list[bytes]:
        return [reject.request.payload for reject in self.rejects]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait long between tries."""
    monkeypatch.setattr("tailspan_collector.delivery._FIRST_WAIT_S", 0.001)
    monkeypatch.setattr("tailspan_collector.delivery._LONGEST_WAIT_S", 0.01)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    """A spool with ten requests."""
    spool = open_spool(tmp_path)
    for number in range(10):
        spool.append(b"\x0a\x02\x12\x00" if number == 0 else b"\x0a\x04\x1a\x02" + b"%02d" % number, "10.0.0.1:1")
    yield spool
    spool.close()


def run(spool: Spool, sink: ScriptedSink, timeout: float = 20, metrics: Metrics | None = None) -> bool:
    """Let a writer store everything; return whether the spool is empty."""
    writer = Writer(spool, sink, 1 << 20, 0.01, metrics or Metrics(), inserts_in_flight=1)
    writer.start()
    spool.stop_accepting()
    return writer.drain(timeout)


def test_transient_errors_are_retried_with_the_same_token(spool: Spool) -> None:
    """A target that is away for many tries gets the same batch under the same token until it takes it."""
    sink = ScriptedSink(lambda _, call: TransientError(241, "full") if call < 12 else None)
    assert run(spool, sink)
    assert len(sink.stored) == 10
    assert len(set(sink.tokens)) == 1
    assert sink.rejected == []


@pytest.mark.parametrize("error", [UnclearError(1, "?"), TooLargeError(241, "memory")])
def test_errors_that_stay_end_in_isolation(spool: Spool, error: InsertError) -> None:
    """An error that stays for some requests, while others are taken, is taken for the fault of those."""
    bad = b"\x0a\x04\x1a\x0205"
    sink = ScriptedSink(lambda payloads, _: error if bad in payloads else None)
    metrics = Metrics()
    assert run(spool, sink, metrics=metrics)
    assert sink.rejected == [bad]
    assert len(sink.stored) == 9
    assert len(set(sink.tokens)) > 3
    found = {
        name: metrics.registry.get_sample_value(f"tailspan_collector_{name}_total", {"signal": "traces"})
        for name in ("written_requests", "rejected_requests")
    }
    assert found == {"written_requests": 9, "rejected_requests": 1}


def test_a_reject_tells_where_it_came_from(spool: Spool) -> None:
    """What is kept of a bad request: its bytes, sender, time, signal, error code and reason."""
    sink = ScriptedSink(lambda payloads, _: DataError(444, "bad") if b"\x0a\x02\x12\x00" in payloads else None)
    assert run(spool, sink)
    (reject,) = sink.rejects
    assert (reject.request.peer, reject.signal, reject.code, reject.reason) == ("10.0.0.1:1", TRACES, 444, "bad")
    assert abs(time.time_ns() - reject.request.received_ns) < 60e9
    assert reject.token in sink.tokens


def test_a_fault_of_the_target_is_never_taken_for_one_of_the_data(spool: Spool) -> None:
    """While the target refuses even an insert of nothing, no request is rejected, whatever the error says."""
    sink = ScriptedSink(lambda *_: DataError(53, "a column has another type") if len(sink.tokens) < 20 else None)
    assert run(spool, sink)
    assert len(sink.stored) == 10
    assert sink.rejected == []
    assert len(set(sink.tokens)) == 1


def test_every_bad_request_is_found(spool: Spool) -> None:
    """Several bad requests of one batch are each rejected and all good ones are stored, in order."""
    bad = {b"\x0a\x04\x1a\x0203", b"\x0a\x04\x1a\x0204", b"\x0a\x04\x1a\x0209"}
    sink = ScriptedSink(lambda payloads, _: DataError(444, "bad") if bad & set(payloads) else None)
    assert run(spool, sink)
    assert set(sink.rejected) == bad
    assert sink.stored == sorted(sink.stored)
    assert len(sink.stored) == 7


def test_one_bad_request_costs_few_inserts(tmp_path: Path) -> None:
    """One bad request of 1,000, valid protobuf so that only the target can tell, is found in two inserts a halving."""
    spool = open_spool(tmp_path)
    for number in range(1000):
        spool.append(b"\x0a\x06\x1a\x04" + b"%04d" % number)
    bad = b"\x0a\x06\x1a\x040617"
    sink = ScriptedSink(lambda payloads, _: DataError(444, "bad") if bad in payloads else None)
    assert run(spool, sink)
    assert sink.rejected == [bad]
    assert len(sink.tokens) <= 1 + 2 * 10
    spool.close()


def test_a_stop_while_the_target_is_away_keeps_the_batch(tmp_path: Path) -> None:
    """A drain that times out leaves the batch in the spool, frozen, for the next start."""
    spool = open_spool(tmp_path)
    spool.append(os.urandom(10))
    sink = ScriptedSink(lambda *_: TransientError(0, "away"))
    assert not run(spool, sink, timeout=0.3)
    spool.close()
    again = open_spool(tmp_path)
    batch = again.freeze(1)
    assert batch is not None
    assert {batch.token} == set(sink.tokens)
    again.close()


class HangingSink(ScriptedSink):
    """A target that answers nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__(lambda *_: None)
        self.entered = threading.Semaphore(0)
        self.go_on = threading.Event()

    def insert(self, signal: Signal, body: bytes, token: str) -> None:
        self.entered.release()
        self.go_on.wait(20)
        super().insert(signal, body, token)


def test_several_inserts_are_in_flight(spool: Spool) -> None:
    """While the target works on one batch it gets the next ones; a crash then brings each again."""
    sink = HangingSink()
    writer = Writer(spool, sink, 150, 0.01, Metrics(), inserts_in_flight=3)
    writer.start()
    assert all(sink.entered.acquire(timeout=10) for _ in range(3))
    assert not sink.entered.acquire(timeout=0.1)
    sink.go_on.set()
    spool.stop_accepting()
    assert writer.drain(20)
    assert len(sink.stored) == 10
    assert len(set(sink.tokens)) == len(sink.tokens) > 3


def test_a_drain_does_not_wait_for_a_target_that_hangs(spool: Spool) -> None:
    """A stop ends within its time even if an insert never returns; its batch stays in the spool."""
    sink = HangingSink()
    writer = Writer(spool, sink, 1 << 20, 0.01, Metrics(), inserts_in_flight=2)
    writer.start()
    assert sink.entered.acquire(timeout=10)
    spool.stop_accepting()
    begin = time.monotonic()
    assert not writer.drain(0.5)
    assert time.monotonic() - begin < 5
    sink.go_on.set()


def test_a_disk_that_is_full_delays_the_writer(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch whose decision cannot be saved is not inserted before it can."""
    monkeypatch.setattr("tailspan_collector.writer._DISK_WAIT_S", 0.01)
    real, failures = spool.freeze, iter([OSError(28, "No space left on device")] * 5)

    def freeze(most_bytes: int) -> object:
        if (error := next(failures, None)) is not None:
            raise error
        return real(most_bytes)

    monkeypatch.setattr(spool, "freeze", freeze)
    sink = ScriptedSink(lambda *_: None)
    writer = Writer(spool, sink, 1 << 20, 0.01, Metrics())
    writer.start()
    time.sleep(0.3)
    spool.stop_accepting()
    assert writer.drain(20)
    assert len(sink.stored) == 10


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Code: 444. DB::Exception: Protobuf messages are corrupted", DataError),
        ("Code: 36. DB::Exception: Invalid protobuf data: OneOf has more than one value", DataError),
        ("Code: 36. DB::Exception: Cannot open schema", UnclearError),
        (
            "Code: 241. DB::Exception: (total) memory limit exceeded: (attempt to allocate chunk of 4.00 MiB)",
            TooLargeError,
        ),
        ("Code: 241. DB::Exception: Query memory limit exceeded: would use 64.00 GiB", DataError),
        ("Code: 241. DB::Exception: (total): (attempt to allocate chunk of 32.00 GiB)", DataError),
        ("Code: 49. DB::Exception: Too large size (9223372036854775808) passed to allocator", DataError),
        ("Code: 243. DB::Exception: Cannot reserve 1.00 MiB, not enough space", TransientError),
        ("Code: 60. DB::Exception: Table tailspan.otlp_traces does not exist", TransientError),
        ("Code: 497. DB::Exception: tailspan: Not enough privileges", TransientError),
        ("Code: 252. DB::Exception: Too many parts (3001 with average size of 1 MiB) in table", TransientError),
        ("Code: 252. DB::Exception: Too many partitions for single INSERT block (more than 100)", DataError),
        ("connection reset", UnclearError),
    ],
)
def test_classification(text: str, kind: type[InsertError]) -> None:
    """Errors of the data, of memory, errors that pass, and all others are told apart."""
    assert type(classify(text)) is kind
