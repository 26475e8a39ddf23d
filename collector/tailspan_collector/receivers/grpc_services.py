"""gRPC's own services: health (for every caller) and reflection (for those with a token).

Health answers SERVING for the whole server and each OTLP service while the collector is ready, else NOT_SERVING.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc  # type: ignore[import-untyped]

from tailspan_collector.receivers.tokens import Tokens
from tailspan_collector.signals import SIGNALS

_LOG = logging.getLogger(__name__)
_EVERY_S = 0.5
_SERVICES = ("", *(signal.service for signal in SIGNALS))
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Services:
    """Health and reflection of one server."""

    def __init__(self, ready: Callable[[], bool], tokens: Tokens | None) -> None:
        self._ready = ready
        self._tokens = tokens
        self._health = health.aio.HealthServicer()
        self._following: asyncio.Task[None] | None = None

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register both services."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (*_SERVICES[1:], health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(_Reflection(names, self._tokens), server)

    def start(self) -> None:
        """Begin to follow `ready`."""
        self._following = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        """Answer NOT_SERVING from now on."""
        if self._following is not None:
            self._following.cancel()
        await self._health.enter_graceful_shutdown()

    async def _follow(self) -> None:
        failed, told = False, None
        while True:
            try:
                status, failed = (_SERVING if self._ready() else _NOT_SERVING), False
            except Exception:
                if not failed:
                    _LOG.exception("readiness cannot be read")
                status, failed = _NOT_SERVING, True
            if status != told:
                for name in _SERVICES:
                    await self._health.set(name, status)
                told = status
            await asyncio.sleep(_EVERY_S)


class _Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]
    """Reflection that asks for a token if there are any."""

    def __init__(self, names: tuple[str, ...], tokens: Tokens | None) -> None:
        super().__init__(names)
        self._tokens = tokens

    async def ServerReflectionInfo(self, request_iterator: Any, unused_context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Answer the requests of one stream."""
        if self._tokens is not None:
            given = [value for key, value in unused_context.invocation_metadata() if key == "authorization"]
            if not any(self._tokens.check(value) for value in given):
                await unused_context.abort(grpc.StatusCode.UNAUTHENTICATED, "a known bearer token is needed")
        async for answer in super().ServerReflectionInfo(request_iterator, unused_context):
            yield answer
