"""Not run but type-checked (`test_public_api_types.py`): what a user's type checker makes of the public API."""

# ruff: noqa: D101, D103 (the functions are what is checked, not what is explained)

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, assert_type

import tailspan
from tailspan import CapturedGraph, Engine, RequestHandle


@tailspan.request("chat", model="m", request_id="1", attributes={"app.n": 1, "app.ok": True, "app.x": 1.5})
def plain(prompt: str, *, limit: int = 3) -> list[str]:
    return [prompt] * limit


@tailspan.stage("tokenize")
async def coroutine(prompt: str) -> int:
    return len(prompt)


@tailspan.request()
def generator(count: int) -> Iterator[str]:
    yield from map(str, range(count))


@tailspan.request()
async def async_generator(count: int) -> AsyncIterator[str]:
    for number in range(count):
        yield str(number)


engine = Engine("mine", "model")


@tailspan.step(engine, requests=lambda: [tailspan.current_request()])
def iterate(batch: int) -> float:
    return batch / 2


class Worker:
    @tailspan.stage("prefill")
    def prefill(self, ids: list[int]) -> bytes:
        return bytes(ids)


async def uses() -> None:
    assert_type(plain("x", limit=2), list[str])
    assert_type(await coroutine("x"), int)
    kept: Callable[[str], Coroutine[Any, Any, int]] = coroutine
    assert_type(await kept("x"), int)
    assert_type(generator(2), Iterator[str])
    assert_type(async_generator(2), AsyncIterator[str])
    assert_type(iterate(2), float)
    assert_type(Worker().prefill([1]), bytes)
    with tailspan.request(traceparent=None) as handle:
        assert_type(handle, RequestHandle)
        assert_type(handle.traceparent, str)
        handle.tokens(input=1, output=2)
        with handle.stage("decode"):
            pass
    async with tailspan.request() as handle, tailspan.stage("queue", request=handle):
        pass
    with tailspan.step(engine, [handle], prefill_tokens=1, waiting=2, kv_usage=0.5) as step:
        assert_type(step.number, int)
        step.tokens(handle)
    graph = engine.capture(lambda: [1.5], pool=None, warm_up=1)
    assert_type(graph, CapturedGraph[list[float]])
    assert_type(graph.replay(), list[float])
    assert_type(graph.times_layers, bool)
    assert_type(tailspan.current_request(), RequestHandle)


def misuses(handle: RequestHandle) -> None:
    # mypy reports an ignore that is not needed, so every line below is known to be an error.
    tailspan.stage("prefil")  # type: ignore[arg-type]
    plain(1)  # type: ignore[arg-type]
    plain("x", limits=2)  # type: ignore[call-arg]
    handle.set("app.list", [1])  # type: ignore[arg-type]
    handle.tokens(1)  # type: ignore[call-arg]
    tailspan.step([handle])  # type: ignore[arg-type]
    engine.capture(plain)  # type: ignore[arg-type]
    engine.capture(lambda: 1, None)  # type: ignore[call-arg]
    tailspan.request("x", "00-0-0-01")  # type: ignore[call-arg]
