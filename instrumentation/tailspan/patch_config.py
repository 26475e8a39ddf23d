"""`TAILSPAN_PATCH`: measure functions of a private engine without touching its code.

    TAILSPAN_PATCH=mypkg.engine:Engine.prefill=prefill,mypkg.tok:encode=tokenize,mypkg.server:handle=request

In: entries `MODULE:PATH=WHAT`, separated by commas. WHAT is `request` (each call is one user request) or a stage.
Out: a `Patcher`, so that late imports work and `uninstrument()` puts the originals back. Functions may be plain,
coroutine, generator or async generator functions; methods, static and class methods too.
Errors: an entry that cannot be read raises `UserError` with the entry and what is allowed. A function that does not
exist is in `Patcher.missing`, as for every engine.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from tailspan import attributes as attr
from tailspan.errors import UserError
from tailspan.handmade.calls import Scope, wrap
from tailspan.handmade.requests import request
from tailspan.handmade.stages import StageName, stage
from tailspan.patching import Patcher, Target, Wrapper

VARIABLE = "TAILSPAN_PATCH"
_REQUEST = "request"
_SYNTAX = "Write MODULE:PATH=WHAT, for example mypkg.engine:Engine.prefill=prefill"
_ALLOWED = f"Use {_REQUEST} or a stage: {', '.join(attr.STAGES)}"


def patcher(environment: Mapping[str, str]) -> Patcher | None:
    """Return the patcher of all entries, not yet applied; None when the variable is not set.

    Raises:
        UserError: an entry that cannot be read.
    """
    entries = [entry.strip() for entry in environment.get(VARIABLE, "").split(",")]
    targets = tuple(_target(entry) for entry in entries if entry)
    seen: set[tuple[str, str]] = set()
    for target in targets:
        if (target.module, target.path) in seen:
            raise UserError(f"{VARIABLE} names {target.module}:{target.path} twice", "Give each function one entry")
        seen.add((target.module, target.path))
    return Patcher(VARIABLE, targets) if targets else None


def _target(entry: str) -> Target:
    where, equals, what = (part.strip() for part in entry.partition("="))
    module, colon, path = (part.strip() for part in where.partition(":"))
    if not equals or not colon or not _is_dotted(module) or not _is_dotted(path):
        raise UserError(f"{VARIABLE} entry {entry!r} is not a function and what it is", _SYNTAX)
    if what == _REQUEST:
        name = path.rpartition(".")[2]
        return Target(module, path, _wrapper(lambda: request(name)), "requests of a private engine")
    if what not in attr.STAGES:
        raise UserError(f"{VARIABLE} entry {entry!r} ends with {what!r}", _ALLOWED)
    return Target(module, path, _wrapper(lambda: stage(cast(StageName, what))), f"the {what} stage of a private engine")


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _wrapper(new_scope: Callable[[], Scope]) -> Wrapper:
    is_plain: bool | None = None

    def call(wrapped: Callable[..., Any], _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal is_plain
        if is_plain is None:
            is_plain = not (
                inspect.iscoroutinefunction(wrapped)
                or inspect.isgeneratorfunction(wrapped)
                or inspect.isasyncgenfunction(wrapped)
            )
        if not is_plain:
            return wrap(wrapped, new_scope)(*args, **kwargs)
        with new_scope():
            return wrapped(*args, **kwargs)

    return call
