"""Hostile clients: memory stays bounded, each gets the right answer, and what others send is stored."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tests.conformance import bombs
from tests.conformance.h2 import H2Connection
from tests.conformance.running import MIB, OtlpCollector, bounded_memory, kept, unique
from tests.conformance.sending import JSON, PROTOBUF, Grpc, Http
from tests.conformance.signals import TRACES, Signal
from tests.conformance.wire import field

PATHS = {"traces": ((1, 2, 2), 9), "metrics": ((1, 2, 2, 5, 1), 7), "logs": ((1, 2, 2), 6)}
"""Field numbers from the request down to a span, a gauge's data point, a log record; and of its attributes."""


pytestmark = pytest.mark.usefixtures("neighbours")


# --- decompression bombs --------------------------------------------------------------------------------------------

BOMBS: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: bombs.deflated(2048, window=31),
    "deflate": lambda: bombs.deflated(2048, window=15),
    "zstd": lambda: bombs.zstd(2048),
}


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON], ids=["protobuf", "json"])
@pytest.mark.parametrize("encoding", BOMBS)
def test_http_decompression_bombs(collector: OtlpCollector, encoding: str, content_type: str) -> None:
    """Four bodies at once that unpack to 2 GiB each are 413, and cost what two of 64 MiB cost."""
    bomb = BOMBS[encoding]()
    assert len(bomb) < 3 * MIB

    def one(_: int) -> int:
        transport = Http(collector.otlp_http_port, content_type)
        try:
            return int(transport.send(TRACES, bomb, headers={"Content-Encoding": encoding}).code)  # type: ignore[arg-type]
        finally:
            transport.close()

    with bounded_memory(collector, 500 * MIB), ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(4))) == [413] * 4


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_grpc_decompression_bombs(collector: OtlpCollector, encoding: str) -> None:
    """The same over gRPC, where the answer is RESOURCE_EXHAUSTED."""
    bomb = BOMBS[encoding]()
    with bounded_memory(collector, 500 * MIB):
        connection = H2Connection(collector.otlp_port)
        connection.open_call(TRACES.method, encoding)
        connection.send_message(bomb, compressed=True)
        assert b"grpc-status\x018" in connection.wait()
        connection.close()


def test_a_bomb_inside_of_a_bomb(collector: OtlpCollector) -> None:
    """Compression in layers is unpacked once only: what is inside is no OTLP."""
    import gzip

    transport = Http(collector.otlp_http_port, PROTOBUF)
    inner = bombs.deflated(1024, window=31)
    with bounded_memory(collector, 64 * MIB):
        reply = transport.send(TRACES, gzip.compress(inner), headers={"Content-Encoding": "gzip"})
    assert reply.code == 400
    transport.close()


def test_requests_of_64_mib_and_a_byte(collector: OtlpCollector) -> None:
    """Eight uncompressed requests at once that are one byte too large cost no more than the limit allows for."""
    body = field(15, bytes(64 * MIB + 1 - 5))
    assert len(body) == 64 * MIB + 1

    def over_http(_: int) -> bool:
        transport = Http(collector.otlp_http_port, PROTOBUF)
        try:
            return transport.send(TRACES, body).code == 413
        finally:
            transport.close()

    def over_grpc(_: int) -> bool:
        transport = Grpc(collector.otlp_port)
        try:
            return transport.send(TRACES, body).code == grpc.StatusCode.RESOURCE_EXHAUSTED
        finally:
            transport.close()

    with bounded_memory(collector, 700 * MIB), ThreadPoolExecutor(4) as pool:
        assert all(pool.map(over_http, range(4)))
        assert all(pool.map(over_grpc, range(4)))


# --- nesting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["array", "kvlist"])
def test_nesting_100_000_deep(collector: OtlpCollector, signal: Signal, kind: str) -> None:
    """A value of 100,000 lists or maps inside each other is stored or kept as a reject; no parser falls."""
    service = unique("deep")
    path, attributes = PATHS[signal.name]
    body = bombs.with_attribute(
        signal.message(service).SerializeToString(), path, attributes, bombs.nested_value(100_000, kind)
    )
    with bounded_memory(collector, 400 * MIB):
        transport = Grpc(collector.otlp_port)
        reply = transport.send(signal, body)
        assert reply.code in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT)
        if reply.ok:
            assert kept(collector, signal, service) == 1
        transport.close()
    assert collector.is_up()


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"resourceSpans":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"later":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"resourceSpans":[{"resource":{"attributes":[{"key":"k","value":'
        + b'{"arrayValue":{"values":[' * 100_000
        + b"]}}" * 100_000
        + b"}]}}]}",
        b'{"resourceSpans":[{"resource":{"attributes":[{"key":"k","value":'
        + b'{"kvlistValue":{"values":[{"key":"k","value":' * 100_000
        + b"}]}}" * 100_000
        + b"}]}}]}",
    ],
    ids=["open lists", "open objects", "lists", "unknown field", "arrays", "maps"],
)
def test_json_nested_100_000_deep(collector: OtlpCollector, body: bytes) -> None:
    """JSON nested 100,000 deep is 400, without a fall of the parser."""
    transport = Http(collector.otlp_http_port, JSON)
    with bounded_memory(collector, 200 * MIB):
        assert transport.send(TRACES, body).code == 400
    transport.close()


def test_json_that_lies_about_its_length(collector: OtlpCollector) -> None:
    """Integers of 100,000 digits and keys of a megabyte are answered at once."""
    transport = Http(collector.otlp_http_port, JSON)
    begin = time.monotonic()
    assert transport.send(TRACES, b'{"resourceSpans": ' + b"9" * 100_000 + b"}").code == 400
    assert transport.send(TRACES, json.dumps({"k" * MIB: 1}).encode()).code == 200
    assert time.monotonic() - begin < 5
    transport.close()
