"""What the specification asks of a receiver over HTTP only."""

from __future__ import annotations

import gzip
import http.client

import pytest
from google.rpc import error_details_pb2

from tests.conformance.running import OtlpCollector, unique
from tests.conformance.sending import JSON, PROTOBUF, TIMEOUT_S, Http, details
from tests.conformance.signals import TRACES, Signal


def test_the_default_paths(http_transport: Http, collector: OtlpCollector, signal: Signal) -> None:
    """POST to /v1/traces, /v1/metrics and /v1/logs takes the signal of that name."""
    service = unique("path")
    assert signal.path == f"/v1/{signal.name}"
    body = http_transport.encode(signal.message(service, 2))
    assert http_transport.request("POST", signal.path, body).code == 200
    assert collector.stored(signal, service, 2) == 2


@pytest.mark.parametrize("path", ["/", "/v1/profiles", "/v1/traces/x", "/v2/traces", "/V1/TRACES"])
def test_other_paths_are_not_found(http_transport: Http, path: str) -> None:
    """Any other path is 404 with a Status that says so, which senders do not retry."""
    reply = http_transport.request("POST", path, b"")
    assert reply.code == 404
    assert reply.text


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD"])
def test_only_post_is_allowed(http_transport: Http, method: str) -> None:
    """Other methods are 405 and name POST in `Allow`, as HTTP wants it."""
    reply = http_transport.request(method, TRACES.path, None)
    assert reply.code == 405
    assert "POST" in reply.headers["allow"]


def test_success_is_200_with_the_response_message(http_transport: Http, signal: Signal) -> None:
    """Full success is 200 OK with the signal's response message in the body."""
    reply = http_transport.send(signal, http_transport.encode(signal.message(unique("ok"))))
    assert reply.code == 200
    assert not reply.response(signal).HasField("partial_success")
    assert reply.body == (b"{}" if http_transport.content_type == JSON else b"")


def test_the_answer_has_the_content_type_of_the_request(http_transport: Http, signal: Signal) -> None:
    """Success and refusal are written in the encoding of the request and say so."""
    accepted = http_transport.send(signal, http_transport.encode(signal.message(unique("type"))))
    refused = http_transport.send(signal, b"\xff not OTLP")
    assert (accepted.code, refused.code) == (200, 400)
    assert accepted.headers["content-type"] == refused.headers["content-type"] == http_transport.content_type


@pytest.mark.parametrize("written", ["application/json; charset=utf-8", "Application/JSON", "application/json;odata=x"])
def test_media_types_are_read_as_http_writes_them(collector: OtlpCollector, written: str) -> None:
    """Parameters and upper case in the Content-Type change nothing."""
    transport, service = Http(collector.otlp_http_port, JSON), unique("media")
    body = transport.encode(TRACES.message(service))
    assert transport.send(TRACES, body, headers={"Content-Type": written}).code == 200
    assert collector.stored(TRACES, service, 1) == 1
    transport.close()


def test_both_encodings_on_one_port(collector: OtlpCollector, signal: Signal) -> None:
    """One port, even one connection, takes protobuf and JSON by their Content-Type."""
    transport, service = Http(collector.otlp_http_port, PROTOBUF), unique("mixed")
    for content_type in (PROTOBUF, JSON, PROTOBUF, JSON):
        transport.content_type = content_type
        reply = transport.send(signal, transport.encode(signal.message(service)))
        assert (reply.code, reply.headers["content-type"]) == (200, content_type)
    assert collector.stored(signal, service, 4) == 4
    transport.close()


def test_another_media_type_is_unsupported(http_transport: Http) -> None:
    """A body in an encoding that OTLP does not know is 415 and not retried."""
    reply = http_transport.send(TRACES, b"<xml/>", headers={"Content-Type": "text/xml"})
    assert reply.code == 415
    assert not reply.retryable


def test_another_compression_is_unsupported(http_transport: Http) -> None:
    """A compression that is not understood is 415 and not retried."""
    reply = http_transport.send(TRACES, b"x", headers={"Content-Encoding": "br"})
    assert reply.code == 415
    assert not reply.retryable
    assert "br" in reply.text


def test_every_refusal_carries_a_status(http_transport: Http) -> None:
    """The body of each 4xx answer is a `google.rpc.Status` with a message, in the encoding of the request."""
    refusals = [
        http_transport.request("POST", TRACES.path, b"\xff"),
        http_transport.request("POST", "/nowhere", b""),
        http_transport.request("GET", TRACES.path, None),
        http_transport.request("POST", TRACES.path, b"x", {"Content-Encoding": "br"}),
        http_transport.request("POST", TRACES.path, b"x", {"Content-Encoding": "gzip"}),
    ]
    assert [reply.code for reply in refusals] == [400, 404, 405, 415, 400]
    for reply in refusals:
        assert reply.headers["content-type"] == http_transport.content_type
        assert reply.text


def test_a_request_that_is_too_large_is_413(small_collector: OtlpCollector, signal: Signal) -> None:
    """Over the limit, as sent or unpacked, is 413 with a Status, in both encodings."""
    for content_type in (PROTOBUF, JSON):
        transport = Http(small_collector.otlp_http_port, content_type)
        body = transport.encode(signal.message(unique("big"), 1, "x" * 200_000))
        for encoded, headers in ((body, {}), (gzip.compress(body), {"Content-Encoding": "gzip"})):
            reply = transport.send(signal, encoded, headers=headers)
            assert reply.code == 413
            assert reply.text
        transport.close()


def test_bad_data_is_400_with_details(http_transport: Http, signal: Signal) -> None:
    """What cannot be decoded is 400, and the Status holds a `BadRequest` that describes it."""
    reply = http_transport.send(signal, b"\xff not OTLP")
    assert reply.code == 400
    (bad,) = details(reply.status, error_details_pb2.BadRequest)
    assert bad.field_violations[0].description


def test_a_full_spool_is_503_with_retry_after(full_collector: OtlpCollector, signal: Signal) -> None:
    """An overloaded receiver answers 429 or 503 and says in `Retry-After` when to come back, in whole seconds."""
    transport = Http(full_collector.otlp_http_port, PROTOBUF)
    for number in range(8):
        reply = transport.send(signal, transport.encode(signal.message(unique("f"), 1, "x" * 300_000 + str(number))))
        if reply.code != 200:
            break
    assert reply.code in (429, 503)
    assert reply.headers["retry-after"].isdigit()
    assert reply.text
    transport.close()


def test_status_codes_say_whether_to_retry(collector: OtlpCollector, full_collector: OtlpCollector) -> None:
    """Codes that are retried stand only for what passes; codes for what does not pass are none of them."""
    permanent = Http(collector.otlp_http_port, PROTOBUF)
    assert not permanent.request("POST", TRACES.path, b"\xff").retryable
    assert not permanent.request("POST", "/nowhere", b"").retryable
    assert not permanent.request("POST", TRACES.path, b"", {"Content-Type": "text/plain"}).retryable
    permanent.close()
    passing = Http(full_collector.otlp_http_port, PROTOBUF)
    replies = [
        passing.send(TRACES, TRACES.message(unique("p"), 1, "x" * 300_000).SerializeToString()) for _ in range(8)
    ]
    assert replies[-1].retryable
    passing.close()


def test_connections_are_kept_alive(http_transport: Http, collector: OtlpCollector) -> None:
    """Many requests, accepted and refused, use one connection."""
    service = unique("alive")
    http_transport.request("POST", TRACES.path, b"\xff")
    first = http_transport.connection.sock
    for _ in range(20):
        assert http_transport.send(TRACES, http_transport.encode(TRACES.message(service))).ok
    assert http_transport.connection.sock is first is not None
    assert collector.stored(TRACES, service, 20) == 20


def test_a_chunked_body_is_taken(collector: OtlpCollector) -> None:
    """A body whose length is not known before is HTTP/1.1 as well."""
    service = unique("chunked")
    body = TRACES.message(service, 5).SerializeToString()
    connection = http.client.HTTPConnection("127.0.0.1", collector.otlp_http_port, timeout=TIMEOUT_S)
    pieces = (body[start : start + 100] for start in range(0, len(body), 100))
    connection.request("POST", TRACES.path, pieces, {"Content-Type": PROTOBUF}, encode_chunked=True)
    assert connection.getresponse().status == 200
    assert collector.stored(TRACES, service, 5) == 5
    connection.close()


def test_a_client_that_accepts_gzip_can_read_the_answer(http_transport: Http, signal: Signal) -> None:
    """With `Accept-Encoding: gzip` the answer is plain, or gzip and says so."""
    reply = http_transport.send(
        signal, http_transport.encode(signal.message(unique("accept"))), headers={"Accept-Encoding": "gzip"}
    )
    assert reply.code == 200
    content = gzip.decompress(reply.body) if reply.headers.get("content-encoding") == "gzip" else reply.body
    assert content == (b"{}" if http_transport.content_type == JSON else b"")
