"""The writer retries what may pass, isolates what cannot be decoded, and gives up on nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tailspan_collector.errors import DataError, InsertError, TransientError, UnclearError, classify
from tailspan_collector.spool import Spool
from tailspan_collector.writer import Writer


class ScriptedSink:
    """A target whose answers a test decides; it keeps what it took."""

    def __init__(self, answer: Callable[[Sequence[bytes], int], InsertError | None]) -> None:
        self.answer = answer
        self.calls = 0
        self.stored: list[bytes] = []
        self.rejected: list[bytes] = []
        self.tokens: list[str] = []

    def insert(self, payloads: Sequence[bytes], token: str) -> None:
        self.calls += 1
        self.tokens.append(token)
        if (error := self.answer(payloads, self.calls)) is not None:
            raise error
        self.stored += payloads

    def reject(self, payload: bytes, token: str, error: InsertError) -> None:
        self.rejected.append(payload)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait long between tries."""
    monkeypatch.setattr("tailspan_collector.writer._FIRST_WAIT_S", 0.001)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    """A spool with ten requests."""
    spool = Spool(tmp_path, 1 << 30)
    for number in range(10):
        spool.append(b"\x0a\x02\x12\x00" if number == 0 else b"\x0a\x04\x1a\x02" + b"%02d" % number)
    yield spool
    spool.close()


def run(spool: Spool, sink: ScriptedSink) -> bool:
    """Let a writer store everything; return whether the spool is empty."""
    writer = Writer(spool, sink, 1 << 20, 0.01)
    writer.start()
    spool.stop_accepting()
    return writer.drain(20)


def test_transient_errors_are_retried_with_the_same_token(spool: Spool) -> None:
    """A target that is away for many tries gets the same batch under the same token until it takes it."""
    sink = ScriptedSink(lambda _, call: TransientError(241, "full") if call < 12 else None)
    assert run(spool, sink)
    assert len(sink.stored) == 10
    assert len(set(sink.tokens)) == 1
    assert sink.rejected == []


def test_unclear_errors_end_in_isolation(spool: Spool) -> None:
    """An error of unknown kind that stays is taken for the fault of the data; the others are stored."""
    bad = b"\x0a\x04\x1a\x0205"
    sink = ScriptedSink(lambda payloads, _: UnclearError(1, "?") if bad in payloads else None)
    assert run(spool, sink)
    assert sink.rejected == [bad]
    assert len(sink.stored) == 9
    assert len(set(sink.tokens)) > 3


def test_every_bad_request_is_found(spool: Spool) -> None:
    """Several bad requests of one batch are each rejected and all good ones are stored, in order."""
    bad = {b"\x0a\x04\x1a\x0203", b"\x0a\x04\x1a\x0204", b"\x0a\x04\x1a\x0209"}
    sink = ScriptedSink(lambda payloads, _: DataError(444, "bad") if bad & set(payloads) else None)
    assert run(spool, sink)
    assert set(sink.rejected) == bad
    assert sink.stored == sorted(sink.stored)
    assert len(sink.stored) == 7


def test_a_stop_while_the_target_is_away_keeps_the_batch(tmp_path: Path) -> None:
    """A drain that times out leaves the batch in the spool, frozen, for the next start."""
    spool = Spool(tmp_path, 1 << 30)
    spool.append(os.urandom(10))
    sink = ScriptedSink(lambda *_: TransientError(0, "away"))
    writer = Writer(spool, sink, 1 << 20, 0.01)
    writer.start()
    assert not writer.drain(0.3)
    spool.close()
    again = Spool(tmp_path, 1 << 30)
    batch = again.freeze(1)
    assert batch is not None
    assert {batch.token} == set(sink.tokens)
    again.close()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Code: 444. DB::Exception: Protobuf messages are corrupted", DataError),
        ("Code: 36. DB::Exception: Invalid protobuf data: OneOf has more than one value", DataError),
        ("Code: 36. DB::Exception: Cannot open schema", UnclearError),
        (
            "Code: 241. DB::Exception: (total) memory limit exceeded: (attempt to allocate chunk of 4.00 MiB)",
            TransientError,
        ),
        ("Code: 241. DB::Exception: Query memory limit exceeded: would use 64.00 GiB", DataError),
        ("Code: 241. DB::Exception: (total): (attempt to allocate chunk of 32.00 GiB)", DataError),
        ("Code: 49. DB::Exception: Too large size (9223372036854775808) passed to allocator", DataError),
        ("Code: 243. DB::Exception: Cannot reserve 1.00 MiB, not enough space", TransientError),
        ("connection reset", UnclearError),
    ],
)
def test_classification(text: str, kind: type[InsertError]) -> None:
    """Errors of the data, errors that pass, and all others are told apart."""
    assert type(classify(text)) is kind
