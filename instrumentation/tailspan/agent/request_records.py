"""What each record says of its request: `RequestState`s filled in place, in any order of the records."""

from __future__ import annotations

import json
from functools import lru_cache

from tailspan import attributes as attr
from tailspan.agent.decode import Record
from tailspan.agent.model import Interval, RequestState


def begin(request: RequestState, record: Record) -> None:
    """Note its name, its trace and caller, and the attributes that were known at once."""
    mask = (1 << 64) - 1
    request.name, request.begin_ns = record.name, record.a
    request.trace_id = (record.b & mask) << 64 | record.c & mask
    request.parent_id, request.flags = record.d & mask, record.flags
    if record.value:
        _describe(request, str(record.value))


def attribute(request: RequestState, record: Record) -> None:
    """Note one attribute."""
    if record.name and record.value is not None:
        request.attributes[record.name] = record.value


# Many requests share a set of attributes.
_parsed = lru_cache(1024)(json.loads)


def _describe(request: RequestState, encoded: str) -> None:
    try:
        request.attributes |= _parsed(encoded)
    except ValueError:  # longer than a name may be, so cut; or its registration was dropped
        return


def attributes(request: RequestState, record: Record) -> None:
    """Note several attributes, and perhaps the id of its answer."""
    _describe(request, record.name)
    _response_id(request, record)


def _response_id(request: RequestState, record: Record) -> None:
    if record.value is not None:
        request.attributes[attr.GEN_AI_RESPONSE_ID] = record.value


def first_token(request: RequestState, record: Record) -> None:
    """Note that a step sampled its first token."""
    token(request, record.a, record.b)


def expect_no_token(request: RequestState) -> None:
    """Note that the step at which it joined does not sample its token after all."""
    for part in request.memberships:
        part.samples_token = False


def token(request: RequestState, step: int, at_ns: int) -> None:
    """Note that a step sampled its first token, or the first one after an eviction."""
    if request.first_token_ns is None:
        request.first_token_step, request.first_token_ns = step, at_ns
    elif request.memberships:
        request.memberships[-1].first_token_step = step


def stage(request: RequestState, record: Record) -> None:
    """Note a stage that one hook measured."""
    busy_ns = record.c if record.c >= 0 else record.b - record.a
    request.measured.append(Interval(record.name, record.a, record.b, busy_ns))


def queued(request: RequestState, record: Record) -> None:
    """Note that the engine has it."""
    request.engine = record.name
    # Several sequences of one request queue one after another.
    request.queued_ns = record.a if request.queued_ns is None else min(request.queued_ns, record.a)
    if record.b:
        request.attributes.setdefault(attr.GEN_AI_INPUT_TOKENS, record.b)
    _response_id(request, record)
