"""The cheap check takes every request that protobuf takes, and little else."""

from __future__ import annotations

import time

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from tailspan_collector.framing import is_export_request, write_varint
from tailspan_collector.signals import SIGNALS, TRACES, Signal
from tests.support.otlp_messages import request_with_stages


def field(number: int, wire_type: int, content: bytes) -> bytes:
    """Return one protobuf field."""
    return write_varint(number << 3 | wire_type) + content


def block(content: bytes) -> bytes:
    """Return bytes after their length."""
    return write_varint(len(content)) + content


def build(wire_type: int, contents: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Return fields of one wire type."""
    return st.builds(lambda number, content: field(number, wire_type, content), st.integers(2, 2**29 - 1), contents)


blocks = st.binary(max_size=200).map(block)
fields = st.one_of(
    blocks.map(lambda content: field(1, 2, content)),
    build(2, blocks),
    build(0, st.integers(0, 2**64 - 1).map(write_varint)),
    build(1, st.binary(min_size=8, max_size=8)),
    build(5, st.binary(min_size=4, max_size=4)),
)


@given(st.lists(fields, max_size=6))
def test_well_formed_requests_are_taken(parts: list[bytes]) -> None:
    """Resources and fields of later versions, in any order, are a request."""
    assert is_export_request(b"".join(parts))


@given(st.binary(max_size=60), st.sampled_from(SIGNALS))
def test_what_protobuf_takes_is_taken(body: bytes, signal: Signal) -> None:
    """No request that the protobuf library can decode is refused, groups and other types of field 1 apart."""
    try:
        message = signal.request.FromString(body)
    except DecodeError:
        return
    if message.ByteSize() == len(body) and message.ListFields():
        assert is_export_request(message.SerializeToString())


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a",
        b"\x0a\x05abcd",
        b"\x0a\x80",
        b"\x0a" + b"\xff" * 10 + b"\x01",
        b"\x08\x01",
        b"\x02\x00",
        b"\x0b\x0c",
        b"\x12\x01",
        b"\x11\x01",
        b"\x15\x01",
        b"\x16",
        b"\xfa\xff\xff\xff\xff\x0f\x00",
    ],
    ids=lambda body: body.hex(),
)
def test_what_is_no_request_is_refused(body: bytes) -> None:
    """Cut off lengths, wrong types, field 0 and groups are refused."""
    assert not is_export_request(body)


def test_a_request_that_is_cut_off_is_refused() -> None:
    """A request cut anywhere is refused, so that a broken transfer is never stored as a smaller one."""
    request = request_with_stages(2)
    assert is_export_request(request)
    assert [cut for cut in range(1, len(request)) if is_export_request(request[:cut])] == []


def test_countless_resources_cost_little_time() -> None:
    """A request of millions of empty resources is refused after 100,000 of them."""
    assert is_export_request(b"\x0a\x00" * 99_999)
    started = time.process_time()
    assert not is_export_request(b"\x0a\x00" * 30_000_000)
    assert time.process_time() - started < 1
    assert TRACES.request.FromString(b"\x0a\x00" * 3).resource_spans
