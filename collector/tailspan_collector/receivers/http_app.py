"""What OTLP/HTTP answers: `/v1/traces`, `/v1/metrics`, `/v1/logs`, `/healthz` and `/readyz`, as an ASGI application.

In: POST of an export request, protobuf or JSON, plain or compressed with gzip, deflate or zstd.
Out: 200 and an empty response (full success) once it is durable; else a `google.rpc.Status`; always in the media type
of the request. An error is sent after the body was read (and thrown away), as many clients read no answer before.
Errors: see `refusals`; 404 and 405 for other paths and methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any

import grpc

from tailspan_collector.metrics import Metrics
from tailspan_collector.receivers import otlp_json
from tailspan_collector.receivers.admission import STOPPING, STOPPING_RETRY_S, Admission
from tailspan_collector.receivers.cors import Cors, Headers
from tailspan_collector.receivers.decompress import IDENTITY
from tailspan_collector.receivers.http_body import Body
from tailspan_collector.receivers.refusals import NotNow, Refusal, TooLarge, Unauthenticated, UnknownEncoding
from tailspan_collector.receivers.settings import ReceiverSettings
from tailspan_collector.receivers.tokens import Tokens
from tailspan_collector.receivers.workers import Room, Workers

_PROTOBUF, _JSON = "application/x-protobuf", "application/json"
_SUCCESS = {_PROTOBUF: b"", _JSON: b"{}"}
_CLOSE = (b"connection", b"close")
Send = Callable[[Any], Any]


class NotFound(Refusal):
    """There is nothing at the path."""

    code = grpc.StatusCode.NOT_FOUND
    http_status = 404


class WrongMethod(Refusal):
    """The path takes another method."""

    code = grpc.StatusCode.UNIMPLEMENTED
    http_status = 405


class Forbidden(Refusal):
    """A web page of an origin that may not send."""

    code = grpc.StatusCode.PERMISSION_DENIED
    http_status = 403


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    media_type: str
    body: bytes
    headers: Headers


class App:
    """The application; one object for all connections."""

    def __init__(
        self,
        admissions: Iterable[Admission],
        settings: ReceiverSettings,
        tokens: Tokens | None,
        cors: Cors,
        room: Room,
        workers: Workers,
        metrics: Metrics,
        ready: Callable[[], bool],
    ) -> None:
        self._admissions = {admission.signal.path: admission for admission in admissions}
        self._limit, self._slow_seconds = settings.max_request_bytes, settings.slow_seconds
        self._tokens, self._cors, self._room, self._workers, self._ready = tokens, cors, room, workers, ready
        self._requests = metrics.requests
        names = [admission.signal.name for admission in self._admissions.values()]
        self._ok = {name: metrics.requests.labels(name, "http", "200") for name in names}
        self._bytes = {name: metrics.received_bytes.labels(name, "http") for name in names}

    async def __call__(self, scope: Mapping[str, Any], receive: Callable[[], Any], send: Send) -> None:
        """Answer one request."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        body = Body(headers, receive, self._limit, self._slow_seconds, self._room)
        admission = self._admissions.get(scope["path"])
        if admission is None:
            answer = self._other(scope["path"], scope["method"], _media_types(headers)[1])
        elif scope["method"] == "OPTIONS" and self._cors.is_on:
            answer = self._preflight(headers)
        else:
            answer = await self._export(admission, scope, headers, body)
        extra = [] if await body.drain() else [_CLOSE]
        await _send(send, answer, [*self._cors.headers(headers), *extra] if admission is not None else extra)

    def _other(self, path: str, method: str, answer_type: str) -> _Answer:
        if path not in ("/healthz", "/readyz"):
            known = ", ".join(self._admissions)
            return _refused(NotFound(f"there is nothing at this path; OTLP/HTTP is at {known}"), answer_type)
        if method not in ("GET", "HEAD"):
            return _refused(WrongMethod("use GET"), _JSON, [(b"allow", b"GET, HEAD")])
        if path == "/readyz" and not self._ready():
            return _Answer(503, "text/plain; charset=utf-8", b"not ready\n", [])
        return _Answer(200, "text/plain; charset=utf-8", b"ok\n", [])

    def _preflight(self, headers: Mapping[bytes, bytes]) -> _Answer:
        allowed = self._cors.preflight(headers)
        if not allowed:
            return _refused(Forbidden("this origin may not send; see --cors-origins"), _JSON)
        # The plain CORS headers are added to every answer.
        return _Answer(204, "", b"", [item for item in allowed if item not in self._cors.headers(headers)])

    async def _export(
        self, admission: Admission, scope: Mapping[str, Any], headers: Mapping[bytes, bytes], body: Body
    ) -> _Answer:
        name = admission.signal.name
        media_type, answer_type = _media_types(headers)
        try:
            if scope["method"] != "POST":
                raise WrongMethod("use POST")
            self._authenticate(headers)
            request = await self._read(admission, media_type, headers, body)
            await admission.store(request, _peer(scope))
        except (Refusal, asyncio.CancelledError) as error:
            # Nothing but the end of the server's patience at shutdown cancels a request.
            refusal = error if isinstance(error, Refusal) else NotNow(STOPPING, STOPPING_RETRY_S)
            self._requests.labels(name, "http", str(refusal.http_status)).inc()
            return _refused(refusal, answer_type)
        self._ok[name].inc()
        self._bytes[name].inc(len(request))
        return _Answer(200, answer_type, _SUCCESS[answer_type], [])

    def _authenticate(self, headers: Mapping[bytes, bytes]) -> None:
        if self._tokens is None:
            return
        given = headers.get(b"authorization")
        if given is None or not self._tokens.check(given.decode("latin-1")):
            raise Unauthenticated("a known bearer token is needed in the header Authorization")

    async def _read(self, admission: Admission, media_type: str, headers: Mapping[bytes, bytes], body: Body) -> bytes:
        if media_type not in _SUCCESS:
            raise UnknownEncoding(f"the content type must be {_PROTOBUF} or {_JSON}")
        encoding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower() or IDENTITY
        try:
            request = await body.read()
        finally:
            body.release()  # whoever takes it over holds room for it
        request = await admission.decompress(encoding, request)
        if media_type == _PROTOBUF:
            return request
        if len(request) > otlp_json.MOST_BYTES:
            raise TooLarge(f"a request in JSON is larger than {otlp_json.MOST_BYTES} bytes; use protobuf")
        return await self._workers.work(len(request), _from_json, request, admission)


def _media_types(headers: Mapping[bytes, bytes]) -> tuple[str, str]:
    """Return the media type of a request, and that of its answer."""
    given = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
    return given, given if given in _SUCCESS else _JSON


def _from_json(document: bytes, admission: Admission) -> bytes:
    return otlp_json.to_protobuf(document, admission.signal.request)


def _peer(scope: Mapping[str, Any]) -> str:
    client = scope["client"]
    if client is None:
        return ""
    host, port = client[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _refused(refusal: Refusal, media_type: str, headers: Headers | None = None) -> _Answer:
    found = list(headers or [])
    if refusal.retry_after() is not None:
        found.append((b"retry-after", str(refusal.retry_after()).encode()))
    if isinstance(refusal, Unauthenticated):
        found.append((b"www-authenticate", b"Bearer"))
    if isinstance(refusal, WrongMethod) and not headers:
        found.append((b"allow", b"POST"))
    body = refusal.status_json() if media_type == _JSON else refusal.status()
    return _Answer(refusal.http_status, media_type, body, found)


async def _send(send: Send, answer: _Answer, extra: Headers) -> None:
    headers: Headers = [(b"date", formatdate(usegmt=True).encode()), *answer.headers, *extra]
    if answer.status != 204:
        headers.append((b"content-type", answer.media_type.encode()))
        headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
