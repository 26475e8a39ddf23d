"""The bytes of a ring file: one header page, then slots of 64 bytes, each one record.

A slot ends with its sequence number (position + 1). It is written last, so a reader takes a slot only when that number
is the one it expects; a slot that was never written or is from the previous lap does not match.

Units: all times are CLOCK_MONOTONIC nanoseconds, which all processes of a host share.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

MAGIC: Final = b"TSPNRING"
VERSION: Final = 3
HEADER_BYTES: Final = 4096
SLOT_BYTES: Final = 64
ENGINE_SEPARATOR: Final = "\x1f"
"""Before id, software and model in the registered name of an engine; no other name begins with it."""

# magic, version, slot count, pid, thread number, process start (clock ticks since boot, from /proc), mono_ns and
# wall_ns of one anchor, command name.
HEADER: Final = struct.Struct("<8sIIQQQqq64s")
TAIL_OFFSET: Final = 256
"""u64 written by the agent: records consumed."""
DROPPED_OFFSET: Final = 264
"""u64 written by the worker: records that found the ring full."""
DROPPED_REQUESTS_OFFSET: Final = 280
"""u64 written by the worker: requests that began while the ring was nearly full and are left out as a whole."""
CLOSED_OFFSET: Final = 272
"""u64 written by the worker: 1 once the process ended in an orderly way."""


class Kind(IntEnum):
    """What a record says. `key` is the request's key unless stated otherwise."""

    STRING = 1
    """Chunk of a string: name = its id in this ring, flags = chunk number, key = length in bytes, 40 bytes of UTF-8."""
    BEGIN = 2
    """A request begins: name = span name, flags = trace flags, a = begin, b/c = trace id high/low, d = parent span id,
    e = id of a string in the same ring, a JSON object of attributes (0: none); see BEGIN_RECORD."""
    ATTRIBUTE = 3
    """name = attribute key, flags = AttributeType, a = value."""
    TEXT_ATTRIBUTE = 4
    """Chunk of a text of the request: name = attribute key, flags = chunk << 1 | is_last, 40 bytes of UTF-8."""
    STAGE = 5
    """A stage measured by one hook: name = stage, a = begin, b = end (0: it begins), c = busy ns (-1: all of it)."""
    QUEUED = 6
    """The engine has the request: name = engine, flags = HAS_RESPONSE_ID or 0, a = time, b = prompt tokens, then 24
    bytes of UTF-8, the engine's id of the request; see QUEUED_RECORD."""
    JOIN = 7
    """First step, or first after an eviction: name = engine, flags = SAMPLES_TOKEN or 0, a = step, b = time, c = cached
    tokens. Written when the step begins, so that a worker that dies in it leaves the request in its prefill."""
    FIRST_TOKEN = 8
    """name = engine, a = step, b = time. A second one: the first token after an eviction with recompute. None where
    JOIN has SAMPLES_TOKEN."""
    LEAVE = 9
    """Evicted before its end: name = engine, a = last step, b = time."""
    FINISH = 10
    """Last token sampled: name = engine, flags = ABORTED or 0, a = last step, b = time, c = output tokens, d = prefill
    steps."""
    ATTRIBUTES = 11
    """Several attributes at once: name = JSON object of them, flags = HAS_RESPONSE_ID or 0, 40 bytes of UTF-8."""
    END = 13
    """name = error type (0: none), flags = index into OUTCOMES, a = time, b = HTTP status (0: none), c = first body
    chunk with output (0: none), d = last text ready (0: none), e = busy ns of all detokenisation."""
    STEP = 14
    """One engine step: name = engine, flags = FAILED or 0, key = step number; see STEP_RECORD."""
    STEP_DEVICE = 15
    """Device time of a step: name = engine, flags = index into DEVICES, key = step number, a = busy ns, b = idle ns
    before it (-1: unknown), c = begin on the host's clock (0: unknown), d = uncertainty of that, ns, e = launch ns
    (-1: unknown). May come long after the STEP."""
    STEP_WORK = 16
    """Host time of a step in the model runner, whatever process that is in, before its STEP: name = engine, key = step
    number, a = ns of inputs and forward pass, b = ns of sampling."""
    LAYERS = 17
    """Times of the model's parts in a sampled step follow, before its STEP_DEVICE: name = engine, flags = LAYERS_GRAPH
    and LAYERS_PREFILL or 0, key = step number, a = id of a string in the same ring, the parts as `encode_parts` writes
    them, b = number of parts, c = steps that it stands for, d = cost of sampling, ns."""
    LAYER_TIMES = 18
    """Next ten times of the LAYERS before: name = engine, flags = number of the chunk, key = step number, ten floats,
    ns; see LAYER_TIMES_RECORD."""


class AttributeType(IntEnum):
    """How the 8 bytes of an ATTRIBUTE value are read."""

    INT = 0
    DOUBLE = 1
    BOOL = 2
    STRING = 3
    """a = string id in the same ring."""


HAS_RESPONSE_ID: Final = 1
"""Flag of QUEUED and ATTRIBUTES: the attribute `gen_ai.response.id` is in the record."""
SAMPLES_TOKEN: Final = 1
"""Flag of JOIN: the step computes all that is missing of the prompt, so its end is also the time of the first token;
unless the step has FAILED, or LEAVE or FINISH of the request comes before it. Whoever sets this writes the STEP into
the same ring."""
ABORTED: Final = 1
"""Flag of FINISH: the engine was told to give the request up."""
FAILED: Final = 1
"""Flag of STEP: it ended without tokens."""
LAYERS_GRAPH: Final = 1
"""Flag of LAYERS: the step replayed a CUDA graph."""
LAYERS_PREFILL: Final = 2
"""Flag of LAYERS: the step computed prompt tokens."""

# kind, flags, name, key, then 40 bytes that depend on the kind, then the sequence number.
RECORD: Final = struct.Struct("<HHIQqqqqqQ")
DOUBLE_RECORD: Final = struct.Struct("<HHIQdqqqqQ")
CHUNK_RECORD: Final = struct.Struct("<HHIQ40sQ")
# begin, trace id high and low, parent span id, attributes
BEGIN_RECORD: Final = struct.Struct("<HHIQqQQQqQ")
# time, prompt tokens, id of the request
QUEUED_RECORD: Final = struct.Struct("<HHIQqq24sQ")
# begin, end, prefill tokens, decode tokens, requests, waiting, preempted, KV usage (NaN: unknown)
STEP_RECORD: Final = struct.Struct("<HHIQqqIIIIIfQ")
# ten times
LAYER_TIMES_RECORD: Final = struct.Struct("<HHIQ10fQ")
LAYER_TIMES: Final = 10
CHUNK_BYTES: Final = 40
MAX_PARTS_BYTES: Final = 8000
"""Longest text of a model's parts, of LAYERS: cut it would be wrong, so the layer times of a longer one are dropped."""
QUEUED_ID_BYTES: Final = 24

_RECORDS = (RECORD, DOUBLE_RECORD, CHUNK_RECORD, BEGIN_RECORD, QUEUED_RECORD, STEP_RECORD, LAYER_TIMES_RECORD)
assert {record.size for record in _RECORDS} == {SLOT_BYTES}


def chunks_of(size: int) -> int:
    """Return how many records a text of as many bytes takes."""
    return max(1, -(-size // CHUNK_BYTES))
