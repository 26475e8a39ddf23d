"""What OTLP senders are told: success only for what is durable, and which errors to retry."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tailspan_collector.receiver import Receiver
from tailspan_collector.spool import Spool
from tests.support.collector import exporter
from tests.support.otlp_messages import request_with_stages

LIMIT = 100_000
Export = Callable[..., bytes]


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    """A spool that takes about 200 kB."""
    spool = Spool(tmp_path, 200_000)
    yield spool
    spool.close()


@pytest.fixture
def export(spool: Spool) -> Iterator[Export]:
    """The export call of a receiver with a small limit of size."""
    receiver = Receiver("127.0.0.1", 0, LIMIT, spool)
    receiver.start()
    with grpc.insecure_channel(f"127.0.0.1:{receiver.port}") as channel:
        yield exporter(channel)
    receiver.stop(1)


def code_of(call: Callable[[], object]) -> grpc.StatusCode:
    """Return the status of a call that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    code: grpc.StatusCode = caught.value.code()
    return code


def test_full_success_leaves_partial_success_unset(export: Export, spool: Spool) -> None:
    """A request that is durable is answered with an empty response, as the OTLP specification asks."""
    request = request_with_stages(3)
    response = ExportTraceServiceResponse.FromString(export(request))
    assert not response.HasField("partial_success")
    batch = spool.freeze(1 << 20)
    assert batch is not None
    assert batch.payloads == (request,)


def test_an_empty_request_succeeds(export: Export, spool: Spool) -> None:
    """A request without spans is no error and needs no disk."""
    assert export(b"") == b""
    assert spool.unread_bytes() == 0


def test_gzip_is_accepted_and_stored_plain(export: Export, spool: Spool) -> None:
    """A gzip-compressed call reaches the spool decompressed."""
    request = request_with_stages(50)
    export(request, compression=grpc.Compression.Gzip)
    batch = spool.freeze(1 << 20)
    assert batch is not None
    assert batch.payloads == (request,)


def test_bad_data_is_invalid_argument(export: Export, spool: Spool) -> None:
    """Bytes that are no OTLP are refused for good and not stored."""
    assert code_of(lambda: export(b"hello world")) is grpc.StatusCode.INVALID_ARGUMENT
    assert spool.unread_bytes() == 0


def test_too_large_is_resource_exhausted_also_after_decompression(export: Export) -> None:
    """The limit of size holds for the decompressed request, so that a small bomb is refused too."""
    large = b"\x0a" + b"\xc0\xc4\x07" + bytes(123_456)
    assert len(gzip.compress(large)) < LIMIT
    assert code_of(lambda: export(large)) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert code_of(lambda: export(large, compression=grpc.Compression.Gzip)) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_back_pressure_is_unavailable(export: Export, spool: Spool) -> None:
    """A full spool asks senders to try again, and takes their requests once it was read."""
    while spool.unread_bytes() <= 200_000:
        spool.append(b"\x12\x90\x4e" + os.urandom(10_000))
    assert code_of(lambda: export(request_with_stages(1))) is grpc.StatusCode.UNAVAILABLE
    while (batch := spool.freeze(1 << 20)) is not None:
        spool.commit(batch)
    assert export(request_with_stages(1)) == b""
