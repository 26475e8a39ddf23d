"""The spool keeps requests in order and durably, and reads around whatever a crash or a bad disk left."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailspan_collector.framing import is_export_request, read_varint, write_varint
from tailspan_collector.metrics import Metrics
from tailspan_collector.signals import TRACES
from tailspan_collector.spool import Spool, SpoolFull, log, records
from tailspan_collector.spool.records import Gap, Record
from tailspan_collector.spool.segments import segment_path, segment_sizes
from tests.support.spools import drain, drain_received, open_spool

PAYLOADS = [bytes([number]) * (number + 1) for number in range(20)]


def fill(folder: Path, payloads: list[bytes]) -> Path:
    """Write requests in one process's life; return the segment that holds them."""
    spool = open_spool(folder)
    for payload in payloads:
        spool.append(payload)
    spool.close()
    return max(path for path in folder.glob("*.log") if path.stat().st_size)


def value_of(metrics: Metrics, name: str) -> float:
    """Return a metric of signal traces."""
    value = metrics.registry.get_sample_value(f"tailspan_collector_{name}", {"signal": "traces"})
    assert value is not None
    return value


def test_order_is_kept_across_restarts(tmp_path: Path) -> None:
    """Requests of several lives of the process come out in the order in which they came."""
    fill(tmp_path, PAYLOADS[:10])
    fill(tmp_path, PAYLOADS[10:])
    spool = open_spool(tmp_path)
    assert drain(spool, 100) == PAYLOADS
    assert spool.unread_bytes() == 0
    spool.close()


def test_sender_and_time_are_kept(tmp_path: Path) -> None:
    """A request comes out with the address of its sender and the time at which it was taken, also after a restart."""
    before_ns = time.time_ns()
    spool = open_spool(tmp_path)
    spool.append(b"one", "127.0.0.1:5432")
    spool.append(b"two")
    spool.close()
    after_ns = time.time_ns()
    spool = open_spool(tmp_path)
    found = drain_received(spool)
    assert [(item.payload, item.peer) for item in found] == [(b"one", "127.0.0.1:5432"), (b"two", "")]
    assert all(before_ns <= item.received_ns <= after_ns for item in found)
    spool.close()


def test_torn_tail_is_skipped_and_kept_aside(tmp_path: Path) -> None:
    """A record that a crash cut off is skipped, counted and kept in a file; all others, before and after, are read."""
    segment = fill(tmp_path, PAYLOADS)
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size - 3)
    metrics = Metrics()
    spool = open_spool(tmp_path, metrics=metrics)
    cursor = spool.cursor("other", 1 << 30, 3600)
    spool.append(b"after the crash")
    assert drain(spool) == [*PAYLOADS[:-1], b"after the crash"]
    assert cursor.next(1 << 20) is not None
    damaged = list(tmp_path.glob("damaged-*.bin"))
    assert [file.read_bytes()[-17:] for file in damaged] == [PAYLOADS[-1][3:]]
    assert value_of(metrics, "corrupt_bytes_total") == damaged[0].stat().st_size
    spool.close()


@given(position=st.integers(0, 2000), value=st.integers(0, 255))
def test_a_changed_byte_costs_at_most_one_request(position: int, value: int) -> None:
    """Whatever byte of a segment is changed, every request but the one that holds it is read, and no byte is missed."""
    segment = bytearray(b"".join(records.header(len(p), records.digest(p), 1, f"peer-{len(p)}") + p for p in PAYLOADS))
    segment[position % len(segment)] = value
    data = bytes(segment)
    items = list(records.scan(data, 0, len(data), verify=True))
    found = [item.received(data).payload for item in items if isinstance(item, Record)]
    assert len(found) >= len(PAYLOADS) - 1
    assert set(found) <= set(PAYLOADS)
    assert [item.start for item in items] == [0, *(item.end for item in items[:-1])]
    assert sum(isinstance(item, Gap) for item in items) <= 1


@given(payload=st.binary(max_size=300), peer=st.text(max_size=150), received_ns=st.integers(0, 2**63))
def test_a_record_reads_back(payload: bytes, peer: str, received_ns: int) -> None:
    """Any request with any sender's name is read back as it was; a name that is too long is cut."""
    data = records.header(len(payload), records.digest(payload), received_ns, peer) + payload
    (item,) = records.scan(data, 0, len(data), verify=True)
    assert isinstance(item, Record)
    received = item.received(data)
    assert (received.payload, received.received_ns) == (payload, received_ns)
    assert len(peer.encode()) > 100 or received.peer == peer


def test_a_range_of_records_is_protobuf(tmp_path: Path) -> None:
    """The body of a batch is a stream of requests, each after its length, that any protobuf decoder understands."""
    request = TRACES.request()
    request.resource_spans.add().schema_url = "x"
    spool = open_spool(tmp_path)
    for number in range(3):
        request.resource_spans[0].schema_url = f"{number}" * 200
        spool.append(request.SerializeToString(), "peer")
    batch = spool.freeze(1 << 20)
    assert batch is not None
    position, urls = 0, []
    while position < len(batch.body):
        length, position = read_varint(batch.body, position)
        urls.append(TRACES.request.FromString(batch.body[position : position + length]).resource_spans[0].schema_url)
        position += length
    assert urls == ["0" * 200, "1" * 200, "2" * 200]
    spool.close()


def test_frozen_batches_are_the_same_after_a_crash(tmp_path: Path) -> None:
    """Batches that were frozen but not committed are read again with their tokens and bytes, though more has come."""
    fill(tmp_path, PAYLOADS[:6])
    spool = open_spool(tmp_path)
    first, second, third = (spool.freeze(80) for _ in range(3))
    assert first is not None
    assert second is not None
    assert third is not None
    spool.commit(second)
    assert spool.unread_bytes() >= len(first.body) + len(third.body)
    spool.append(b"later")
    spool.close()
    again = open_spool(tmp_path)
    assert [again.freeze(1), again.freeze(1)] == [first, third]
    again.commit(third)
    again.commit(first)
    assert drain(again)[-1] == b"later"
    assert again.unread_bytes() == 0
    again.close()


def test_a_state_file_that_is_torn_falls_back(tmp_path: Path) -> None:
    """When the newest state was cut by a crash, the one before it counts: a batch may come again, none is lost."""
    fill(tmp_path, PAYLOADS[:2])
    spool = open_spool(tmp_path)
    batch = spool.freeze(1 << 20)
    assert batch is not None
    spool.commit(batch)
    spool.close()
    state = bytearray((tmp_path / "cursor.json").read_bytes())
    newest = max((0, 8192), key=lambda at: int(state[at:].split(b'"serial":')[1].split(b",")[0]))
    state[newest + 20] ^= 1
    (tmp_path / "cursor.json").write_bytes(state)
    again = open_spool(tmp_path)
    assert again.freeze(1 << 20) == batch
    again.close()


def test_batches_respect_their_limit(tmp_path: Path) -> None:
    """A batch holds at most the bytes asked for, and at least one request however large that is."""
    fill(tmp_path, [b"a" * 100, b"b" * 100, b"c" * 5000, b"d"])
    spool = open_spool(tmp_path)
    sizes = []
    while (batch := spool.freeze(300)) is not None:
        sizes.append([len(batch.received(record).payload) for record in batch.records])
        spool.commit(batch)
    assert sizes == [[100, 100], [5000], [1]]
    spool.close()


def test_segments_roll_and_read_ones_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full segment is followed by a new one; those that were read and are old are removed from disk."""
    monkeypatch.setattr("tailspan_collector.spool.spool.RESEND_SECONDS", -1.0)
    spool = open_spool(tmp_path, segment_bytes=200)
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
    metrics = Metrics()
    spool = open_spool(tmp_path, 1000, metrics=metrics)
    spool.append(b"x" * 1500)
    with pytest.raises(SpoolFull, match="wait to be written") as full:
        spool.append(b"y")
    assert full.value.retry_after_s > 0
    assert value_of(metrics, "refused_requests_total") == 1
    drain(spool)
    spool.append(b"y")
    assert drain(spool) == [b"y"]
    spool.close()


def test_what_waits_too_long_makes_the_spool_refuse(tmp_path: Path) -> None:
    """Once the oldest request waited longer than allowed, the spool asks to wait until it is stored."""
    spool = open_spool(tmp_path, max_unread_seconds=0.05)
    spool.append(b"x")
    time.sleep(0.1)
    assert spool.unread_seconds() > 0.05
    with pytest.raises(SpoolFull, match="waited more than"):
        spool.append(b"y")
    drain(spool)
    assert spool.unread_seconds() == 0
    assert spool.append(b"y")
    spool.close()


def test_a_closing_spool_refuses(tmp_path: Path) -> None:
    """A collector that shuts down takes nothing more, and says when to come back."""
    spool = open_spool(tmp_path)
    spool.stop_accepting()
    with pytest.raises(SpoolFull, match="shutting down") as full:
        spool.append(b"x")
    assert full.value.retry_after_s > 0
    spool.close()


def test_a_full_disk_loses_nothing_that_was_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk is full the request is refused and leaves nothing behind; the ones before and after are whole."""
    spool = open_spool(tmp_path)
    spool.append(b"before")
    real = os.writev

    def half_then_full(descriptor: int, buffers: list[bytes]) -> int:
        real(descriptor, [b"".join(buffers)[:7]])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", half_then_full)
    with pytest.raises(SpoolFull, match="No space left"):
        spool.append(b"refused")
    monkeypatch.setattr(os, "writev", real)
    spool.append(b"refused")
    assert drain(spool) == [b"before", b"refused"]
    spool.close()


def test_a_failed_fsync_is_never_trusted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed fsync the request is refused and the next one goes to a new segment."""
    spool = open_spool(tmp_path)
    spool.append(b"before")
    real = os.fdatasync

    def broken(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(SpoolFull, match="Input/output"):
        spool.append(b"refused")
    monkeypatch.setattr(os, "fdatasync", real)
    spool.append(b"after")
    assert [size > 0 for size in segment_sizes(tmp_path).values()] == [True, True]
    assert drain(spool) == [b"before", b"after"]
    spool.close()


def test_many_threads_share_an_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of many threads are all stored, with fewer fsyncs than requests."""
    calls = []
    real = os.fdatasync
    spool = open_spool(tmp_path)

    def counted(descriptor: int) -> None:
        calls.append(descriptor)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", counted)
    payloads = [str(number).encode() * 50 for number in range(400)]
    append_in_threads(spool, [payloads[index::16] for index in range(16)])
    monkeypatch.setattr(os, "fdatasync", real)
    assert sorted(drain(spool)) == sorted(payloads)
    assert 0 < len(calls) < len(payloads)
    spool.close()


def test_a_lone_sender_does_not_wait_for_company(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that come one at a time are durable at once, however long a group may gather."""
    monkeypatch.setattr(log, "_GATHER_S", 60.0)
    spool = open_spool(tmp_path)
    begin = time.monotonic()
    assert all(spool.append(payload) for payload in PAYLOADS)
    assert time.monotonic() - begin < 60
    spool.close()


def test_after_company_requests_gather(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a group of several the next ones wait for each other and share an fsync; a stop ends the wait."""
    monkeypatch.setattr(log, "_GATHER_S", 60.0)
    metrics, results = Metrics(), []
    spool = open_spool(tmp_path, metrics=metrics)
    first = threading.Barrier(2)
    with spool._changed:
        spool.submit(b"one", "", lambda _: None)
        spool.submit(b"two", "", lambda _: first.wait())
    first.wait()
    for payload in PAYLOADS:
        spool.submit(payload, "", results.append)
    assert not results
    spool.stop_accepting()
    assert results == [None] * len(PAYLOADS)
    assert value_of(metrics, "fsync_seconds_count") == 2
    spool.close()


def test_a_batch_outlives_its_segment(tmp_path: Path) -> None:
    """The body of a batch is a view of the spool's file, and stays what it is when the file is removed."""
    spool = open_spool(tmp_path)
    spool.append(b"payload")
    batch = spool.freeze(1 << 20)
    assert batch is not None
    for path in tmp_path.glob("*.log"):
        path.unlink()
    assert [batch.received(record).payload for record in batch.records] == [b"payload"]
    spool.close()


def append_in_threads(spool: Spool, parts: list[list[bytes]]) -> list[bool]:
    """Append each part in a thread of its own; return what `append` said."""
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda p=part: answers.extend(map(spool.append, p))) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_the_same_bytes_are_kept_once(tmp_path: Path) -> None:
    """A request whose bytes are in the spool is not stored again, also after a restart and from many threads."""
    metrics = Metrics()
    spool = open_spool(tmp_path, metrics=metrics)
    assert sorted(append_in_threads(spool, [[b"one"]] * 20)) == [False] * 19 + [True]
    assert value_of(metrics, "resent_requests_total") == 19
    spool.close()
    again = open_spool(tmp_path)
    assert not again.append(b"one")
    assert again.append(b"two")
    assert drain(again) == [b"one", b"two"]
    assert not again.append(b"two")
    again.close()


def test_equal_checksums_do_not_make_requests_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Different requests that happen to have one checksum are all kept, whether they come together or one by one."""
    monkeypatch.setattr(records, "digest", lambda _: 7)
    spool = open_spool(tmp_path)
    payloads = [str(number).encode() for number in range(30)]
    append_in_threads(spool, [[payload] for payload in payloads[:20]])
    for payload in payloads[20:]:
        assert spool.append(payload)
    assert sorted(drain(spool)) == sorted(payloads)
    spool.close()


def test_cursors_read_on_their_own(tmp_path: Path) -> None:
    """Each cursor has its own place, which survives a restart and holds the segments that it still needs."""
    spool = open_spool(tmp_path, segment_bytes=300)
    fast, slow = spool.cursor("fast", 1 << 30, 3600), spool.cursor("slow", 1 << 30, 3600)
    for payload in PAYLOADS:
        spool.append(payload, "peer")
    chunk = fast.next(1 << 20)
    assert chunk is not None
    fast.commit(chunk)
    taken = [request.payload for request in chunk.requests]
    assert drain(spool) == PAYLOADS
    assert slow.behind_bytes > fast.behind_bytes
    assert slow.behind_seconds > 0
    spool.close()
    spool = open_spool(tmp_path)
    for name, expected in (("fast", PAYLOADS[len(taken) :]), ("slow", PAYLOADS)):
        cursor = spool.cursor(name, 1 << 30, 3600)
        found: list[bytes] = []
        while (chunk := cursor.next(100)) is not None:
            found += [request.payload for request in chunk.requests]
            cursor.commit(chunk)
        assert found == expected
        assert (cursor.behind_bytes, cursor.behind_seconds, cursor.skipped_requests) == (0, 0.0, 0)
    spool.close()


def test_a_cursor_waits_for_what_comes(tmp_path: Path) -> None:
    """A cursor that has read all waits until a request comes; one that is new begins with the next request."""
    spool = open_spool(tmp_path)
    spool.append(b"before")
    cursor = spool.cursor("late", 1 << 30, 3600)
    assert not cursor.wait(0.01)
    assert cursor.next(100) is None
    thread = threading.Timer(0.05, spool.append, [b"after"])
    thread.start()
    assert cursor.wait(10)
    chunk = cursor.next(100)
    assert chunk is not None
    assert [request.payload for request in chunk.requests] == [b"after"]
    thread.join()
    spool.close()


@pytest.mark.parametrize(("most_bytes", "most_seconds"), [(500, 3600.0), (1 << 30, 0.05)])
def test_a_cursor_that_is_too_far_behind_skips_and_says_so(
    tmp_path: Path, most_bytes: int, most_seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Beyond its bounds a cursor loses the oldest requests, counts them, and lets their segments go."""
    spool = open_spool(tmp_path, segment_bytes=400)
    cursor = spool.cursor("away", most_bytes, most_seconds)
    payloads = [bytes([number]) * 100 for number in range(40)]
    for payload in payloads:
        spool.append(payload)
    if most_seconds < 1:
        time.sleep(0.1)
    spool.append(b"newest")
    chunk, found = cursor.next(1 << 20), []
    while chunk is not None:
        found += [request.payload for request in chunk.requests]
        cursor.commit(chunk)
        chunk = cursor.next(1 << 20)
    assert found == [*payloads, b"newest"][cursor.skipped_requests :]
    assert 30 <= cursor.skipped_requests <= 40
    assert cursor.skipped_bytes > 100 * cursor.skipped_requests
    assert caplog.text.count("further behind than its bounds") == 1
    spool.close()


def test_a_cursor_never_holds_up_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments beyond the bounds of a cursor that nobody reads are removed once they are stored."""
    monkeypatch.setattr("tailspan_collector.spool.spool.RESEND_SECONDS", -1.0)
    spool = open_spool(tmp_path, segment_bytes=400)
    cursor = spool.cursor("dead", 1000, 3600)
    for number in range(100):
        spool.append(bytes([number]) * 100)
    drain(spool)
    assert sum(segment_sizes(tmp_path).values()) < 2500
    assert cursor.behind_bytes <= 1000
    spool.close()


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
