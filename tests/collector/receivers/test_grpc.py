"""What OTLP/gRPC senders are told: success only for what is durable, and which errors to retry."""

from __future__ import annotations

import gzip
import threading
import zlib
from pathlib import Path

import grpc
import pytest

from tailspan_collector.signals import SIGNALS, TRACES, Signal
from tests.collector.receivers.clients import export, filler, open_channel, refused
from tests.collector.receivers.receiving import LIMIT, Receiving, receiving
from tests.support.collector import wait_until
from tests.support.otlp_messages import request_with_stages

REQUEST = request_with_stages(3)


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.name)
def test_full_success_leaves_partial_success_unset(receivers: Receiving, signal: Signal) -> None:
    """A durable request of any signal is answered with an empty response, and reaches the spool of that signal."""
    response = signal.response.FromString(export(receivers.grpc.port, REQUEST, signal))
    assert not response.HasField("partial_success")
    assert {name: intake.requests for name, intake in receivers.intakes.items() if intake.requests} == {
        signal.name: [REQUEST]
    }
    assert receivers.count("grpc", "OK", signal.name) == 1


def test_the_sender_is_known(receivers: Receiving) -> None:
    """The spool learns the address and port of the sender."""
    export(receivers.grpc.port, REQUEST)
    host, _, port = receivers.traces.peers[0].rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 1024


def test_an_empty_request_succeeds(receivers: Receiving) -> None:
    """A request without spans is no error and needs no disk."""
    assert export(receivers.grpc.port, b"") == b""
    assert receivers.traces.requests == []


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_requests_are_stored_plain(receivers: Receiving, compression: grpc.Compression) -> None:
    """A compressed call reaches the spool decompressed."""
    request = request_with_stages(50)
    export(receivers.grpc.port, request, compression=compression)
    assert receivers.traces.requests == [request]


def test_bad_data_is_invalid_argument(receivers: Receiving) -> None:
    """Bytes that are no OTLP are refused for good and not stored, also when they look compressed and are damaged."""
    damaged = gzip.compress(REQUEST)[:-9]
    for body in (b"hello world", b"\x0a\x05abc", damaged, b"\x1f\x8b" + bytes(20), gzip.compress(b"no")):
        failure = refused(receivers.grpc.port, body)
        assert (failure.code, failure.retry_after_s) == (grpc.StatusCode.INVALID_ARGUMENT, None), body
    assert receivers.traces.requests == []


def test_too_large_is_resource_exhausted_without_retry_info(receivers: Receiving) -> None:
    """The limit of size holds before and after decompression, and its error tells senders not to try again."""
    large = filler(LIMIT + 1)
    assert len(gzip.compress(large)) < LIMIT
    for compression in (None, grpc.Compression.Gzip, grpc.Compression.Deflate):
        failure = refused(receivers.grpc.port, large, compression=compression)
        assert (failure.code, failure.retry_after_s) == (grpc.StatusCode.RESOURCE_EXHAUSTED, None)
    assert receivers.count("grpc", "RESOURCE_EXHAUSTED") == 3
    assert export(receivers.grpc.port, filler(LIMIT - 10)) == b""


def test_a_bomb_costs_the_limit_of_memory() -> None:
    """A megabyte that stands for a gigabyte never takes more memory than the limit allows."""
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join([packer.compress(bytes(1 << 20)) for _ in range(1024)] + [packer.flush()])
    with receiving(max_request_bytes=8 << 20) as running:
        export(running.grpc.port, REQUEST)
        before = peak_bytes()
        for _ in range(3):
            # The channel sends it as it is, as a sender that sets the flag of compression does.
            failure = refused(running.grpc.port, bomb)
            assert failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert peak_bytes() - before < 64 << 20


def peak_bytes() -> int:
    """Return the most memory that this process ever had."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def test_back_pressure_is_unavailable_with_retry_info(receivers: Receiving) -> None:
    """A full spool asks senders to come back after a time that they can read, and takes their requests later."""
    receivers.traces.fill(2.5)
    failure = refused(receivers.grpc.port, REQUEST)
    assert (failure.code, failure.retry_after_s) == (grpc.StatusCode.UNAVAILABLE, 2.5)
    receivers.traces.error = None
    assert export(receivers.grpc.port, REQUEST) == b""


def test_an_unforeseen_error_is_to_be_retried(receivers: Receiving, caplog: pytest.LogCaptureFixture) -> None:
    """A defect or a broken disk never tells a sender to drop its data, and is logged once, not for each request."""
    receivers.traces.error = OSError(5, "Input/output error")
    for _ in range(3):
        failure = refused(receivers.grpc.port, REQUEST)
        assert failure.code is grpc.StatusCode.UNAVAILABLE
        assert failure.retry_after_s is not None
    assert len([record for record in caplog.records if "Input/output error" in record.getMessage()]) == 1


def test_an_unknown_method_is_unimplemented(receivers: Receiving) -> None:
    """Other services and methods are told apart from errors of data."""
    with open_channel(receivers.grpc.port) as opened:
        for method in (f"/{TRACES.service}/Import", "/nobody.Service/Export"):
            with pytest.raises(grpc.RpcError) as caught:
                opened.unary_unary(method)(b"", timeout=5)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_too_much_in_memory_is_unavailable(receivers: Receiving) -> None:
    """Requests that wait for the disk may fill the memory only up to the limit; the rest is asked to come later."""
    with receiving(max_waiting_bytes=2 * len(REQUEST)) as running:
        running.traces.may_go_on.clear()
        threads = [threading.Thread(target=export, args=(running.grpc.port, REQUEST)) for _ in range(2)]
        for thread in threads:
            thread.start()
        room = running.grpc._workers._room
        assert wait_until(lambda: room.free_bytes, lambda free: free == 0, 10) == 0
        failure = refused(running.grpc.port, REQUEST)
        running.traces.may_go_on.set()
        for thread in threads:
            thread.join()
        assert (failure.code, failure.retry_after_s) == (grpc.StatusCode.UNAVAILABLE, 1.0)
        assert export(running.grpc.port, REQUEST) == b""
