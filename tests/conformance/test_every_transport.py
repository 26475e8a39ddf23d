"""What the specification asks of a receiver over gRPC and HTTP alike, for traces, metrics and logs."""

from __future__ import annotations

import random
import string as letters
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from tests.conformance.conftest import CollectorFactory
from tests.conformance.running import MIB, TRANSPORTS, OtlpCollector, unique
from tests.conformance.sending import Reply, Transport
from tests.conformance.signals import LOGS, METRICS, SIGNALS, TRACES, Signal
from tests.support.otlp_messages import string

RESPONSE_LIMIT = 4 * MIB
SMALL_LIMIT = 100_000


def send(transport: Transport, signal: Signal, message: Any, **options: Any) -> Reply:
    """Send a message in the transport's encoding."""
    return transport.send(signal, transport.encode(message), **options)


def padded(transport: Transport, signal: Signal, service: str, size: int) -> bytes:
    """Return an encoded request of exactly `size` bytes that hardly compresses."""
    message = signal.message(service)
    attributes = getattr(message, signal.resources)[0].resource.attributes
    rng = random.Random(size)
    filler = "".join(rng.choices(letters.ascii_letters + letters.digits, k=min(size, 1 << 16)))
    attributes.append(string("filler", (filler * (size // len(filler) + 1))[: size - 1000]))
    for _ in range(8):  # lengths of lengths: a step or two and it fits
        body = transport.encode(message)
        if len(body) == size:
            return body
        value = attributes[-1].value
        missing = size - len(body)
        value.string_value = value.string_value[:missing] if missing < 0 else value.string_value + filler[:missing]
    raise AssertionError(f"no request of {size} bytes")


def test_uncompressed_requests_are_stored(transport: Transport, collector: OtlpCollector, signal: Signal) -> None:
    """A request without compression is accepted and all its items are stored."""
    service = unique("plain")
    assert send(transport, signal, signal.message(service, 3)).ok
    assert collector.stored(signal, service, 3) == 3


def test_gzip_requests_are_stored(transport: Transport, collector: OtlpCollector, signal: Signal) -> None:
    """A request compressed with gzip is accepted and all its items are stored."""
    service = unique("gzip")
    assert send(transport, signal, signal.message(service, 3, "x" * 4000), gzipped=True).ok
    assert collector.stored(signal, service, 3) == 3


def test_success_is_an_empty_response_message(transport: Transport, signal: Signal) -> None:
    """The answer to what is accepted is the signal's response message with `partial_success` unset."""
    reply = send(transport, signal, signal.message(unique("success"), 2))
    assert reply.ok
    response = reply.response(signal)
    assert not response.HasField("partial_success")
    assert not MessageToDict(response)


def test_a_strange_item_gives_no_partial_success(
    transport: Transport, signal: Signal, collector: OtlpCollector
) -> None:
    """A request is accepted or refused as a whole: an item without name and time is stored like the others."""
    service = unique("strange")
    message = signal.message(service, 2)
    resource = getattr(message, signal.resources)[0]
    scope = getattr(resource, resource.DESCRIPTOR.fields[1].name)[0]
    items = getattr(scope, scope.DESCRIPTOR.fields[1].name)
    (items[0].gauge.data_points if signal is METRICS else items).add()
    reply = send(transport, signal, message)
    assert reply.ok
    assert not reply.response(signal).HasField("partial_success")
    assert collector.stored(signal, service, 3) == 3


def test_an_empty_request_succeeds(transport: Transport, signal: Signal) -> None:
    """A request that carries nothing is answered with success."""
    reply = send(transport, signal, signal.request())
    assert reply.ok
    assert not reply.response(signal).HasField("partial_success")


def test_empty_envelopes_succeed(transport: Transport, signal: Signal, collector: OtlpCollector) -> None:
    """Resources without scopes and scopes without items are accepted, store nothing and harm nothing beside them."""
    service = unique("envelope")
    message = signal.message(service)
    getattr(message, signal.resources).add().resource.attributes.append(string("service.name", service))
    full = getattr(message, signal.resources)[0]
    getattr(full, full.DESCRIPTOR.fields[1].name).add().scope.name = "empty"
    assert send(transport, signal, message).ok
    assert collector.stored(signal, service, 1) == 1


@pytest.mark.parametrize("name", TRANSPORTS)
def test_a_request_over_the_limit_is_refused(small_collector: OtlpCollector, name: str, signal: Signal) -> None:
    """With `--max-request-bytes` a request of that size is stored, and one byte more is refused for good."""
    transport = small_collector.transport(name)
    service = unique("limit")
    assert transport.send(signal, padded(transport, signal, service, SMALL_LIMIT)).ok
    reply = transport.send(signal, padded(transport, signal, service, SMALL_LIMIT + 1))
    assert_too_large(reply)
    assert small_collector.stored(signal, service, 1) == 1
    transport.close()


@pytest.mark.parametrize("name", TRANSPORTS)
def test_a_request_over_the_limit_after_decompression_is_refused(
    small_collector: OtlpCollector, name: str, signal: Signal
) -> None:
    """The limit counts for what a gzip body unpacks to, however small the body is."""
    transport = small_collector.transport(name)
    service = unique("unpacked")
    assert transport.send(signal, padded(transport, signal, service, SMALL_LIMIT), gzipped=True).ok
    big = signal.message(service, 1, "x" * (10 * SMALL_LIMIT))
    assert_too_large(send(transport, signal, big, gzipped=True))
    assert small_collector.stored(signal, service, 1) == 1
    transport.close()


def assert_too_large(reply: Reply) -> None:
    """The refusal is the one that the specification names, and not to be retried."""
    assert str(reply.code) in ("StatusCode.RESOURCE_EXHAUSTED", "413")
    assert not reply.retryable
    assert reply.text


def test_64_mib_is_the_default_limit(transport_name: str, transport: Transport, collector: OtlpCollector) -> None:
    """By default a request of 64 MiB (in JSON, which takes far more memory, 16 MiB) is stored, but no byte more."""
    service, limit = unique("default"), 16 * MIB if transport_name == "http/json" else 64 * MIB
    assert transport.send(TRACES, padded(transport, TRACES, service, limit)).ok
    assert_too_large(transport.send(TRACES, padded(transport, TRACES, service, limit + 1)))
    assert collector.stored(TRACES, service, 1, timeout=60) == 1


def test_responses_are_small(transport: Transport, collector: OtlpCollector, signal: Signal) -> None:
    """Neither success nor refusal grows with the request: both stay far below 4 MiB."""
    service = unique("response")
    replies = [
        send(transport, signal, signal.message(service, 1000, "x" * 500)),
        transport.send(signal, b"\xff" * MIB),
        transport.send(signal, b"[" * MIB),
    ]
    for reply in replies:
        size = len(reply.body) + (reply.status.ByteSize() if reply.status is not None else 0)
        assert size < 10_000 < RESPONSE_LIMIT
    assert [reply.ok for reply in replies] == [True, False, False]


def test_bad_data_is_refused_for_good(transport: Transport, signal: Signal) -> None:
    """Bytes that are no message of the encoding get INVALID_ARGUMENT or 400, with a reason, and are not retried."""
    for body in (b"\xff\xff\xff\xff", b"not OTLP", transport.encode(signal.message("cut", 3))[:-5]):
        reply = transport.send(signal, body)
        assert str(reply.code) in ("StatusCode.INVALID_ARGUMENT", "400"), body
        assert not reply.retryable
        assert reply.text


def test_bad_data_that_is_compressed_is_refused_for_good(transport: Transport, signal: Signal) -> None:
    """The same holds inside of gzip."""
    reply = transport.send(signal, b"not OTLP", gzipped=True)
    assert str(reply.code) in ("StatusCode.INVALID_ARGUMENT", "400")
    assert not reply.retryable


def test_many_requests_at_once(transport_name: str, collector: OtlpCollector, signal: Signal) -> None:
    """Requests that are under way at the same time are all answered and stored."""
    service = unique("many")
    opened = [collector.transport(transport_name) for _ in range(1 if transport_name == "grpc" else 16)]

    def one(number: int) -> list[bool]:
        transport = opened[number % len(opened)]
        return [send(transport, signal, signal.message(service)).ok for _ in range(4)]

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(one, range(16))) == [[True] * 4] * 16
    for transport in opened:
        transport.close()
    assert collector.stored(signal, service, 64) == 64


@pytest.mark.parametrize("signal", SIGNALS, ids=str)
@pytest.mark.parametrize("name", TRANSPORTS)
def test_a_full_spool_asks_senders_to_wait(full_collector: OtlpCollector, name: str, signal: Signal) -> None:
    """When no more can be taken, senders get a code to retry and a time to wait that is neither 0 nor a minute."""
    transport = full_collector.transport(name)
    message = signal.message(unique("full"), 1, "x" * 300_000)
    for _ in range(8):
        reply = send(transport, signal, message)
        getattr(message, signal.resources)[0].schema_url += "x"  # not the same request again
        if not reply.ok:
            break
    assert str(reply.code) in ("StatusCode.UNAVAILABLE", "503", "429")
    assert reply.retryable
    assert reply.retry_info is not None
    assert 0 < reply.retry_info <= 30
    assert reply.text
    transport.close()


def test_one_full_signal_leaves_the_others_open(start_collector: CollectorFactory) -> None:
    """Back-pressure of one signal is not that of another: when traces are refused, log records are still taken."""
    running = start_collector("--batch-seconds", "60", "--max-spool-bytes", "1048576", "--stop-seconds", "5")
    transport = running.transport("grpc")
    answers = [send(transport, TRACES, TRACES.message(unique("full"), 1, "x" * 300_000)).ok for _ in range(8)]
    assert answers[0]
    assert not answers[-1]
    assert send(transport, LOGS, LOGS.message(unique("open"))).ok
    transport.close()
