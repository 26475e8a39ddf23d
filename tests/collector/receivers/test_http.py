"""What OTLP/HTTP senders are told, in the media type in which they asked."""

from __future__ import annotations

import gzip
import json
import threading
import time
import zlib
from collections.abc import Callable

import pytest
import zstandard

from tailspan_collector.signals import SIGNALS, Signal
from tests.collector.receivers.clients import JSON, PROTOBUF, RawHttp, post
from tests.collector.receivers.receiving import LIMIT, Receiving, receiving
from tests.support.otlp_messages import request_with_stages

REQUEST = request_with_stages(3)
JSON_REQUEST = b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"a"}]}]}]}'


def raw_deflate(body: bytes) -> bytes:
    """Compress without zlib's header, as some senders do."""
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


COMPRESSIONS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "two gzip members": ("gzip", lambda body: gzip.compress(body[:9]) + gzip.compress(body[9:])),
    "deflate": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw_deflate),
    "zstd": ("zstd", zstandard.compress),
    "two zstd frames": ("ZSTD", lambda body: zstandard.compress(body[:9]) + zstandard.compress(body[9:])),
}


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.name)
def test_full_success_in_protobuf(receivers: Receiving, signal: Signal) -> None:
    """A durable request is answered with 200, an empty response in protobuf and no partial success."""
    response = post(receivers.http.port, REQUEST, signal.path)
    assert (response.status, response.headers["content-type"]) == (200, PROTOBUF)
    assert not signal.response.FromString(response.body).HasField("partial_success")
    assert receivers.intakes[signal.name].requests == [REQUEST]
    assert receivers.count("http", "200", signal.name) == 1


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.name)
def test_full_success_in_json(receivers: Receiving, signal: Signal) -> None:
    """A request in JSON is stored in protobuf and answered with an empty object in JSON."""
    key = f"resource{signal.name.capitalize()}" if signal.name != "traces" else "resourceSpans"
    document = json.dumps({key: [{"resource": {"attributes": [{"key": "a", "value": {"intValue": "5"}}]}}]})
    response = post(receivers.http.port, document.encode(), signal.path, content_type=f"{JSON}; charset=utf-8")
    assert (response.status, response.headers["content-type"], response.json()) == (200, JSON, {})
    message = signal.request.FromString(receivers.intakes[signal.name].requests[0])
    resources = message.ListFields()[0][1]
    assert resources[0].resource.attributes[0].value.int_value == 5


def test_empty_requests_succeed(receivers: Receiving) -> None:
    """A request without spans is no error and needs no disk."""
    assert post(receivers.http.port, b"").status == 200
    assert post(receivers.http.port, b"{}", content_type=JSON).status == 200
    assert receivers.traces.requests == []


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_compressed_bodies_are_stored_plain(receivers: Receiving, name: str) -> None:
    """Each compression reaches the spool decompressed, for protobuf and JSON."""
    encoding, compress = COMPRESSIONS[name]
    assert post(receivers.http.port, compress(REQUEST), content_encoding=encoding).status == 200
    packed = compress(JSON_REQUEST)
    assert post(receivers.http.port, packed, content_type=JSON, content_encoding=encoding).status == 200
    assert receivers.traces.requests[0] == REQUEST
    assert len(receivers.traces.requests) == 2


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_damaged_compression_is_400(receivers: Receiving, name: str) -> None:
    """A body that is cut off, followed by rubbish or not compressed at all is refused for good, never cut short."""
    encoding, compress = COMPRESSIONS[name]
    packed = compress(REQUEST)
    for body in (packed[:-1], packed[: len(packed) // 2], packed + b"rubbish", REQUEST, b""):
        assert post(receivers.http.port, body, content_encoding=encoding).status == 400
    assert receivers.traces.requests == []


def test_bad_data_is_400(receivers: Receiving) -> None:
    """What is no OTLP is refused for good with a Status in the media type of the request."""
    response = post(receivers.http.port, b"hello world")
    assert (response.status, response.headers["content-type"]) == (400, PROTOBUF)
    assert response.error().code == 3
    assert "ExportTraceServiceRequest" in response.error().message
    response = post(receivers.http.port, b"[1]", content_type=JSON)
    assert (response.status, response.headers["content-type"]) == (400, JSON)
    assert response.json()["code"] == 3
    assert "retry-after" not in response.headers


def test_too_large_is_413_before_and_after_decompression(receivers: Receiving) -> None:
    """The limit of size holds for the body as sent, chunked or not, and for what it stands for."""
    large = bytes(LIMIT + 1)
    assert post(receivers.http.port, large).status == 413
    for encoding, compress in COMPRESSIONS.values():
        response = post(receivers.http.port, compress(large), content_encoding=encoding)
        assert (response.status, response.error().code) == (413, 8)
    with RawHttp(receivers.http.port) as connection:
        connection.request({"content-type": PROTOBUF, "transfer-encoding": "chunked"})
        for _ in range(3):
            connection.send(b"a000\r\n" + bytes(0xA000) + b"\r\n")
        connection.send(b"0\r\n\r\n")
        assert connection.response().status == 413


def test_a_sender_that_asks_first_need_not_send(receivers: Receiving) -> None:
    """`Expect: 100-continue` is answered with 413 instead of 100 when the body would be too large."""
    with RawHttp(receivers.http.port) as connection:
        headers = {"content-type": PROTOBUF, "content-length": str(LIMIT + 1), "expect": "100-continue"}
        connection.request(headers)
        assert connection.response().status == 413
        assert connection.closed_within(2)


def test_chunked_bodies_are_read(receivers: Receiving) -> None:
    """A body without a length is read to its end."""
    with RawHttp(receivers.http.port) as connection:
        connection.request({"content-type": PROTOBUF, "transfer-encoding": "chunked"})
        for byte in REQUEST:
            connection.send(b"1\r\n" + bytes([byte]) + b"\r\n")
        connection.send(b"0\r\n\r\n")
        assert connection.response().status == 200
    assert receivers.traces.requests == [REQUEST]


def test_other_media_types_and_encodings_are_415(receivers: Receiving) -> None:
    """What is not understood is named with what would be."""
    for headers in ({"content_type": "text/plain"}, {"content_encoding": "br"}, {"content_encoding": "gzip, gzip"}):
        response = post(receivers.http.port, REQUEST, **headers)
        assert response.status == 415
    assert "gzip" in response.error().message


def test_other_paths_and_methods(receivers: Receiving) -> None:
    """404 says where OTLP is, in the encoding of the request; 405 says which method."""
    response = post(receivers.http.port, REQUEST, "/v1/trace")
    assert (response.status, response.error().code) == (404, 5)
    assert "/v1/traces" in response.error().message
    for method in ("GET", "PUT", "DELETE", "OPTIONS", "BREW"):
        response = post(receivers.http.port, b"", method=method)
        assert (response.status, response.headers["allow"]) == (405, "POST")


def test_back_pressure_is_503_with_retry_after(receivers: Receiving) -> None:
    """A full spool asks senders to come back after whole seconds, in header and body alike."""
    receivers.traces.fill(2.5)
    response = post(receivers.http.port, JSON_REQUEST, content_type=JSON)
    assert (response.status, response.headers["retry-after"]) == (503, "3")
    assert response.json()["code"] == 14
    detail = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "2.500s"}
    assert response.json()["details"] == [detail]
    receivers.traces.error = None
    assert post(receivers.http.port, REQUEST).status == 200


def test_an_unforeseen_error_is_to_be_retried(receivers: Receiving) -> None:
    """A defect or a broken disk never tells a sender to drop its data."""
    receivers.traces.error = OSError(5, "Input/output error")
    response = post(receivers.http.port, REQUEST)
    assert response.status == 503
    assert "retry-after" in response.headers


def test_too_much_in_memory_is_429(receivers: Receiving) -> None:
    """Bodies may fill the memory only up to the limit; the rest is asked to come later."""
    with receiving(max_waiting_bytes=2 * len(REQUEST)) as running:
        running.traces.may_go_on.clear()
        threads = [threading.Thread(target=post, args=(running.http.port, REQUEST)) for _ in range(2)]
        for thread in threads:
            thread.start()
        while running.http._workers._room.free_bytes:
            time.sleep(0.01)
        response = post(running.http.port, REQUEST)
        assert (response.status, response.headers["retry-after"]) == (429, "1")
        running.traces.may_go_on.set()
        for thread in threads:
            thread.join()
        assert post(running.http.port, REQUEST).status == 200


def test_a_connection_serves_many_requests(receivers: Receiving) -> None:
    """Requests after good and bad ones on the same connection are answered, also when they were sent ahead."""
    headers = {"content-type": PROTOBUF, "content-length": str(len(REQUEST))}
    with RawHttp(receivers.http.port) as connection:
        for content_type in (PROTOBUF, "text/plain", PROTOBUF):
            connection.request(headers | {"content-type": content_type}, REQUEST)
            assert connection.response().status == (200 if content_type == PROTOBUF else 415)
    assert len(receivers.traces.requests) == 2


def test_probes_need_no_token() -> None:
    """`/healthz` and `/readyz` answer everybody and tell nothing but yes or no."""
    with receiving() as running:
        assert post(running.http.port, b"", "/healthz", "GET").body == b"ok\n"
        assert post(running.http.port, b"", "/readyz", "GET").status == 200
        running.is_ready = False
        assert post(running.http.port, b"", "/healthz", "GET").status == 200
        response = post(running.http.port, b"", "/readyz", "GET")
        assert (response.status, response.body) == (503, b"not ready\n")
        assert post(running.http.port, b"", "/readyz").status == 405


def test_what_is_no_http_is_400(receivers: Receiving) -> None:
    """Rubbish, endless headers and contradicting lengths end the connection with a Status."""
    for data in (
        b"rubbish\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nx: " + b"a" * 70_000,
        b"POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
    ):
        with RawHttp(receivers.http.port) as connection:
            connection.send(data)
            response = connection.response()
            assert (response.status, response.headers["content-type"]) == (400, JSON)
            assert connection.closed_within(2)
    assert post(receivers.http.port, REQUEST).status == 200


def test_a_broken_chunk_ends_only_its_connection(receivers: Receiving, caplog: pytest.LogCaptureFixture) -> None:
    """A body that turns out to be no HTTP is refused, stores nothing and logs no traceback."""
    with RawHttp(receivers.http.port) as connection:
        connection.request({"content-type": PROTOBUF, "transfer-encoding": "chunked"})
        connection.send(b"zz\r\n")
        assert connection.response().status == 400
        assert connection.closed_within(2)
    assert post(receivers.http.port, REQUEST).status == 200
    assert receivers.traces.requests == [REQUEST]
    assert [record for record in caplog.records if record.exc_info] == []
