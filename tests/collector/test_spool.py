"""The spool keeps requests in order and durably, and reads around whatever a crash or a bad disk left."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailspan_collector import records, segments
from tailspan_collector.framing import is_export_request, read_varint, write_varint
from tailspan_collector.records import scan
from tailspan_collector.segments import segment_path, segment_sizes
from tailspan_collector.spool import Spool, SpoolFull


def drain(spool: Spool, most_bytes: int = 1 << 20) -> list[bytes]:
    """Read and commit everything."""
    found: list[bytes] = []
    while (batch := spool.freeze(most_bytes)) is not None:
        found += batch.payloads
        spool.commit(batch)
    return found


def fill(folder: Path, payloads: list[bytes]) -> Path:
    """Write requests in one process's life; return the segment that holds them."""
    spool = Spool(folder, 1 << 30)
    for payload in payloads:
        spool.append(payload)
    spool.close()
    return max(path for path in folder.glob("*.log") if path.stat().st_size)


PAYLOADS = [bytes([number]) * (number + 1) for number in range(20)]


def test_order_is_kept_across_restarts(tmp_path: Path) -> None:
    """Requests of several lives of the process come out in the order in which they came."""
    fill(tmp_path, PAYLOADS[:10])
    fill(tmp_path, PAYLOADS[10:])
    spool = Spool(tmp_path, 1 << 30)
    assert drain(spool, 100) == PAYLOADS
    assert spool.unread_bytes() == 0
    spool.close()


def test_torn_tail_is_skipped(tmp_path: Path) -> None:
    """A record that was cut off by a crash is skipped; what was whole before it and what comes after it is read."""
    segment = fill(tmp_path, PAYLOADS)
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size - 3)
    spool = Spool(tmp_path, 1 << 30)
    spool.append(b"after the crash")
    assert drain(spool) == [*PAYLOADS[:-1], b"after the crash"]
    spool.close()


@given(position=st.integers(0, 400), value=st.integers(0, 255))
def test_a_changed_byte_costs_at_most_one_request(position: int, value: int) -> None:
    """Whatever byte of a segment is changed, every request but the one that holds it is read."""
    segment = bytearray(b"".join(records.header(p, records.zlib.crc32(p)) + p for p in PAYLOADS))
    hit = position % len(segment)
    segment[hit] = value
    found = [record.payload(bytes(segment)) for record in scan(bytes(segment))]
    assert len(found) >= len(PAYLOADS) - 1
    assert set(found) <= set(PAYLOADS)


def test_a_frozen_batch_is_the_same_after_a_crash(tmp_path: Path) -> None:
    """A batch that was frozen but not committed is read again with the same token and content, though more has come."""
    fill(tmp_path, PAYLOADS[:5])
    spool = Spool(tmp_path, 1 << 30)
    frozen = spool.freeze(1 << 20)
    spool.append(b"later")
    spool.close()
    again = Spool(tmp_path, 1 << 30)
    assert again.freeze(10) == frozen
    assert frozen is not None
    again.commit(frozen)
    assert drain(again) == [b"later"]
    again.close()


def test_batches_respect_their_limit(tmp_path: Path) -> None:
    """A batch holds at most the bytes asked for, and at least one request however large that is."""
    fill(tmp_path, [b"a" * 100, b"b" * 100, b"c" * 5000, b"d"])
    spool = Spool(tmp_path, 1 << 30)
    sizes = []
    while (batch := spool.freeze(250)) is not None:
        sizes.append([len(payload) for payload in batch.payloads])
        spool.commit(batch)
    assert sizes == [[100, 100], [5000], [1]]
    spool.close()


def test_segments_roll_and_read_ones_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full segment is followed by a new one; those that were read and are old are removed from disk."""
    monkeypatch.setattr("tailspan_collector.spool._KEEP_READ_SECONDS", -1.0)
    spool = Spool(tmp_path, 1 << 30, segment_bytes=200)
    for number in range(20):
        spool.append(bytes([number]) * 100)
    assert len(segment_sizes(tmp_path)) > 5
    assert len(drain(spool)) == 20
    assert len(segment_sizes(tmp_path)) == 1
    spool.append(bytes([0]) * 100)
    assert drain(spool) == [bytes([0]) * 100]
    spool.close()


def test_a_full_spool_refuses_and_recovers(tmp_path: Path) -> None:
    """Beyond the limit of unread bytes the spool asks to wait; once they are read it takes requests again."""
    spool = Spool(tmp_path, 1000)
    spool.append(b"x" * 1500)
    with pytest.raises(SpoolFull, match="wait to be written"):
        spool.append(b"y")
    drain(spool)
    spool.append(b"y")
    assert drain(spool) == [b"y"]
    spool.close()


def test_a_full_disk_loses_nothing_that_was_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk is full the request is refused and leaves nothing behind; the ones before and after are whole."""
    spool = Spool(tmp_path, 1 << 30)
    spool.append(b"before")
    real = segments.os.writev

    def half_then_full(descriptor: int, buffers: list[bytes]) -> int:
        real(descriptor, [b"".join(buffers)[:7]])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(segments.os, "writev", half_then_full)
    with pytest.raises(SpoolFull, match="No space left"):
        spool.append(b"refused")
    monkeypatch.setattr(segments.os, "writev", real)
    spool.append(b"refused")
    assert drain(spool) == [b"before", b"refused"]
    spool.close()


def test_many_threads_share_an_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of many threads are all stored, with fewer fsyncs than requests."""
    calls = []
    real = segments.os.fdatasync
    monkeypatch.setattr(segments.os, "fdatasync", lambda descriptor: (calls.append(1), real(descriptor)))
    spool = Spool(tmp_path, 1 << 30)
    payloads = [str(number).encode() * 50 for number in range(400)]
    threads = [
        threading.Thread(target=lambda part=part: [spool.append(p) for p in part]) for part in _parts(payloads, 16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(drain(spool)) == sorted(payloads)
    assert 0 < len(calls) < len(payloads)
    spool.close()


def _parts(items: list[bytes], count: int) -> list[list[bytes]]:
    return [items[index::count] for index in range(count)]


def test_the_same_bytes_are_kept_once(tmp_path: Path) -> None:
    """A request whose bytes are in the spool is not stored again, also after a restart."""
    spool = Spool(tmp_path, 1 << 30)
    assert spool.append(b"one")
    assert not spool.append(b"one")
    spool.close()
    again = Spool(tmp_path, 1 << 30)
    assert not again.append(b"one")
    assert again.append(b"two")
    assert drain(again) == [b"one", b"two"]
    again.close()


@given(value=st.integers(0, 2**63 - 1))
def test_varints_read_back(value: int) -> None:
    """A length that is written as a varint is read back, with the position after it."""
    encoded = write_varint(value)
    assert read_varint(b"x" + encoded + b"y", 1) == (value, 1 + len(encoded))


@pytest.mark.parametrize(
    ("body", "good"),
    [
        (b"", True),
        (b"\x0a\x00", True),
        (b"\x0a\x02ab\x0a\x01c", True),
        (b"\x10\x05", True),
        (b"\x0a\x05ab", False),
        (b"\x08\x01", False),
        (b"\x0b", False),
        (b"\xff" * 20, False),
        (b"hello world", False),
        (b'{"resourceSpans": []}', False),
    ],
)
def test_framing(body: bytes, good: bool) -> None:
    """Only protobuf whose field 1 holds messages passes for an export request; unknown fields are allowed."""
    assert is_export_request(body) is good


def test_segment_names_sort_by_number(tmp_path: Path) -> None:
    """Names are padded, so that the order of names is the order of numbers."""
    assert segment_path(tmp_path, 9).name < segment_path(tmp_path, 10).name
