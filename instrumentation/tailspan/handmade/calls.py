"""Functions of every kind inside a scope: plain, coroutine, generator and async generator.

In: a function and what makes a new scope (a request, a stage or a step) for each call. A generator's scope lasts from
its first resume to its end, and is active only while the generator's own code runs. Exceptions pass untouched.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from types import TracebackType
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Scope(Protocol):
    """What surrounds one call; none of these methods raises."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def resume(self) -> None:
        """Code of a generator runs."""

    def pause(self) -> None:
        """Code of its consumer runs."""

    def item(self) -> None:
        """The generator yields."""


class AlsoAsync(Generic[T]):
    """Makes a context manager an asynchronous one too; entering and leaving never wait."""

    __slots__ = ()

    def __enter__(self) -> T:
        """Begin; see the subclass."""
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End; see the subclass."""
        raise NotImplementedError

    async def __aenter__(self) -> T:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)


def wrap(function: Callable[P, R], new_scope: Callable[[], Scope]) -> Callable[P, R]:
    """Return the function with a scope around every call; it keeps its kind and signature."""
    wrapped: Callable[..., Any]
    if inspect.isasyncgenfunction(function):
        wrapped = _async_generator(function, new_scope)
    elif inspect.isgeneratorfunction(function):
        wrapped = _generator(function, new_scope)
    elif inspect.iscoroutinefunction(function):
        wrapped = _coroutine(function, new_scope)
    else:
        wrapped = _plain(function, new_scope)
    return cast(Callable[P, R], functools.wraps(function)(wrapped))


def _plain(function: Callable[..., Any], new_scope: Callable[[], Scope]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with new_scope():
            return function(*args, **kwargs)

    return call


def _coroutine(function: Callable[..., Any], new_scope: Callable[[], Scope]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        with new_scope():
            return await function(*args, **kwargs)

    return call


def _generator(function: Callable[..., Any], new_scope: Callable[[], Scope]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        generator = function(*args, **kwargs)
        scope = new_scope()
        with scope:
            resume, value = generator.send, None
            while True:
                scope.resume()
                try:
                    item = resume(value)
                except StopIteration as stop:
                    return stop.value
                finally:
                    scope.pause()
                scope.item()
                try:
                    resume, value = generator.send, (yield item)
                except BaseException as error:  # thrown in by the consumer, or its close()
                    resume, value = generator.throw, error

    return call


def _async_generator(function: Callable[..., Any], new_scope: Callable[[], Scope]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        generator = function(*args, **kwargs)
        scope = new_scope()
        with scope:
            resume, value = generator.asend, None
            while True:
                scope.resume()
                try:
                    item = await resume(value)
                except StopAsyncIteration:
                    return
                finally:
                    scope.pause()
                scope.item()
                try:
                    resume, value = generator.asend, (yield item)
                except BaseException as error:  # thrown in by the consumer, or its aclose()
                    resume, value = generator.athrow, error

    return call
