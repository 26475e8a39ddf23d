"""The ring: every record arrives once and in order, and a full ring costs records, never the worker."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailspan.agent.decode import Record, RingDecoder, Step
from tailspan.recorder import begin_request, process
from tailspan.recorder.engine import Engine
from tailspan.recorder.layout import ENGINE_SEPARATOR, SLOT_BYTES, Kind
from tailspan.recorder.reader import RingReader
from tailspan.recorder.ring import MAX_STRINGS, OVERFLOW_STRING, RingWriter


def drain(reader: RingReader) -> list[bytes]:
    """Read until nothing is pending."""
    slots = reader.read()
    while reader.pending:
        slots += reader.read()
    return slots


def keys(slots: list[bytes]) -> list[int]:
    """Return the key of each record."""
    return [int.from_bytes(slot[8:16], "little") for slot in slots]


def test_records_come_out_in_order_across_many_laps(tmp_path: Path) -> None:
    """A ring of 64 slots hands over thousands of records in order, none twice."""
    writer = RingWriter(tmp_path / "a.ring", 64, 0)
    reader = RingReader(tmp_path / "a.ring")
    seen: list[int] = []
    for number in range(5000):
        writer.record(Kind.END, 0, 0, number)
        if number % 50 == 0:
            seen += keys(drain(reader))
    seen += keys(drain(reader))
    assert seen == list(range(5000))
    assert reader.dropped == 0


def test_a_full_ring_drops_the_newest_and_counts(tmp_path: Path) -> None:
    """Without a reader the ring keeps its oldest records, counts the others, and goes on when it is read."""
    writer = RingWriter(tmp_path / "a.ring", 64, 0)
    reader = RingReader(tmp_path / "a.ring")
    for number in range(100):
        writer.record(Kind.END, 0, 0, number)
    assert reader.dropped == 36
    assert keys(drain(reader)) == list(range(64))
    writer.record(Kind.END, 0, 0, 7)
    assert keys(drain(reader)) == [7]


def test_a_record_is_handed_out_only_after_it_settled(tmp_path: Path) -> None:
    """The read that first sees a record does not return it; the next one does."""
    writer = RingWriter(tmp_path / "a.ring", 64, 0)
    reader = RingReader(tmp_path / "a.ring")
    writer.record(Kind.END, 0, 0, 1)
    assert reader.read() == []
    assert reader.pending
    assert keys(reader.read()) == [1]


def test_a_new_reader_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    """The position lives in the ring, so an agent that is started again repeats nothing."""
    writer = RingWriter(tmp_path / "a.ring", 64, 0)
    for number in range(10):
        writer.record(Kind.END, 0, 0, number)
    first = RingReader(tmp_path / "a.ring")
    assert len(drain(first)) == 10
    writer.record(Kind.END, 0, 0, 10)
    assert keys(drain(RingReader(tmp_path / "a.ring"))) == [10]


def test_the_file_is_private_and_its_size_is_the_bound(tmp_path: Path) -> None:
    """Mode 0600, and 64 bytes a record plus one page."""
    writer = RingWriter(tmp_path / "a.ring", 128, 0)
    status = writer.path.stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_size == 4096 + 128 * SLOT_BYTES


def test_a_file_that_is_no_ring_is_refused(tmp_path: Path) -> None:
    """A half-created or foreign file raises ValueError, which the agent takes as `not yet`."""
    (tmp_path / "short.ring").write_bytes(b"x")
    (tmp_path / "other.ring").write_bytes(b"x" * 9000)
    for name in ("short.ring", "other.ring"):
        with pytest.raises(ValueError, match="ring"):
            RingReader(tmp_path / name)


@settings(max_examples=50, deadline=None)
@given(values=st.lists(st.text(max_size=120).filter(lambda text: text[:1] != ENGINE_SEPARATOR), max_size=20))
def test_strings_and_texts_survive(tmp_path_factory: pytest.TempPathFactory, values: list[str]) -> None:
    """Any Unicode name or text up to 240 bytes comes out as it went in."""
    path = tmp_path_factory.mktemp("ring") / "a.ring"
    writer = RingWriter(path, 1024, 0)
    for number, value in enumerate(values):
        writer.record(Kind.END, 0, writer.string(value), number)
        writer.text(number, writer.string("key"), value)
    events = list(RingDecoder().decode(drain(RingReader(path))))
    expected = [value.encode("utf-8", "replace")[:240] for value in values]
    ends = [event for event in events if isinstance(event, Record) and event.kind is Kind.END]
    texts = [event for event in events if isinstance(event, Record) and event.kind is Kind.ATTRIBUTE]
    assert [event.name for event in ends] == [data.decode("utf-8", "replace") for data in expected]
    assert [event.value for event in texts] == [data.rstrip(b"\0").decode("utf-8", "replace") for data in expected]


def test_the_string_table_is_bounded(tmp_path: Path) -> None:
    """More different names than the table holds read as one overflow name; memory does not grow."""
    writer = RingWriter(tmp_path / "a.ring", 8192, 0)
    ids = {writer.string(f"name {number}") for number in range(MAX_STRINGS + 100)}
    assert len(ids) == MAX_STRINGS
    events = RingDecoder()
    list(events.decode(drain(RingReader(tmp_path / "a.ring"))))
    writer.record(Kind.END, 0, writer.string("one more"), 1)
    (event,) = events.decode(drain(RingReader(tmp_path / "a.ring")))
    assert isinstance(event, Record)
    assert event.name == OVERFLOW_STRING


def test_every_thread_has_its_own_ring_and_gives_it_back(worker_dir: Path) -> None:
    """Threads that follow each other share one ring; those at the same time do not."""
    barrier = threading.Barrier(4)

    def together() -> None:
        begin_request("a", process.now_ns()).end(process.now_ns())
        barrier.wait()

    for _ in range(3):
        threads = [threading.Thread(target=together) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(list(worker_dir.glob("*.ring"))) == 4


def test_a_forked_child_writes_into_a_ring_of_its_own(worker_dir: Path) -> None:
    """After fork the child never touches its parent's ring."""
    begin_request("parent", process.now_ns())
    child = os.fork()
    if child == 0:
        begin_request("child", process.now_ns())
        os._exit(0)
    os.waitpid(child, 0)
    begin_request("parent", process.now_ns())
    names = {}
    for path in worker_dir.glob("*.ring"):
        reader = RingReader(path)
        events = RingDecoder().decode(drain(reader))
        names[reader.header.pid] = [event.name for event in events if isinstance(event, Record)]
    assert names == {os.getpid(): ["parent", "parent"], child: ["child"]}


def test_steps_and_attributes_keep_their_values(worker_dir: Path) -> None:
    """Every field of a step and every attribute type reads back exactly."""
    request = begin_request("a", 5)
    request.attribute("int", -(1 << 62))
    request.attribute("double", 0.1)
    request.attribute("bool", True)
    request.attribute("string", "x")
    engine = Engine("transformers", "m")
    engine.step(3, 10, 20, requests=4, prefill_tokens=100, decode_tokens=3, waiting=7, preempted=1, kv_usage=0.25)
    engine.step(4, 20, 30, requests=1, prefill_tokens=0, decode_tokens=1)
    (path,) = worker_dir.glob("*.ring")
    events = list(RingDecoder().decode(drain(RingReader(path))))
    values = {event.name: event.value for event in events if isinstance(event, Record) and event.value is not None}
    assert values == {"int": -(1 << 62), "double": 0.1, "bool": True, "string": "x"}
    assert [event for event in events if isinstance(event, Step)] == [
        Step(engine.id, 3, 10, 20, 100, 3, 4, 7, 1, 0.25),
        Step(engine.id, 4, 20, 30, 0, 1, 1, 0, 0, None),
    ]
