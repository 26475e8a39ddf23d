"""One scheduler of an engine: its steps, and which requests take part in them.

The worker writes one record a step and one for each request that joins, is evicted or finishes; one for a
first token only where nobody knew at the join which step samples it. Token times, ITL and batch membership follow from
those in the agent.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Sequence

from tailspan import attributes as attr
from tailspan.recorder import layout, process
from tailspan.recorder.layout import Kind
from tailspan.recorder.process import unrecorded

_numbers = itertools.count()
_UNKNOWN = float("nan")
# Plain numbers: looking a member up in an enumeration costs a good part of a record.
_JOIN, _FIRST_TOKEN = int(Kind.JOIN), int(Kind.FIRST_TOKEN)
_ATTRIBUTE, _INT = int(Kind.ATTRIBUTE), int(layout.AttributeType.INT)
_LEAVE, _FINISH = int(Kind.LEAVE), int(Kind.FINISH)
_STEP_WORK, _STEP_DEVICE = int(Kind.STEP_WORK), int(Kind.STEP_DEVICE)
_LAYERS, _LAYER_TIMES = int(Kind.LAYERS), int(Kind.LAYER_TIMES)


class Engine:
    """An engine instance. Times are `now_ns()` values; requests are named by their key (`Request.key`).

    `name` is what rings register: id, software and model in one, so that no record of an engine needs another first.
    """

    __slots__ = ("_steps", "id", "model", "name", "software")

    def __init__(self, software: str, model: str) -> None:
        """Name the engine software (`transformers`) and the model that it runs."""
        self.id = f"{software}-{os.getpid()}-{next(_numbers)}"
        self.software = software
        self.model = model
        self.name = layout.ENGINE_SEPARATOR.join(("", self.id, software, model))
        self._steps = itertools.count(1)

    def next_step(self) -> int:
        """Return the number of the step that begins now; the first is 1."""
        return next(self._steps)

    def queued(self, key: int, at_ns: int, prompt_tokens: int = 0, response_id: str = "") -> None:
        """The engine has the request: its queue time begins. The id is `gen_ai.response.id`."""
        if key in unrecorded:
            return
        ring = process.ring()
        data = response_id.encode("utf-8", "replace")
        if len(data) > layout.QUEUED_ID_BYTES:
            ring.queued(self.name, 0, key, at_ns, prompt_tokens, b"")
            ring.text(key, ring.string(attr.GEN_AI_RESPONSE_ID), response_id)
        else:
            ring.queued(self.name, layout.HAS_RESPONSE_ID if data else 0, key, at_ns, prompt_tokens, data)

    def join(self, key: int, step: int, at_ns: int, cached_tokens: int = 0, *, samples_token: bool = False) -> None:
        """The request is part of the batch from this step on, for the first time or after an eviction.

        samples_token: this step will sample its first token, or the first one after an eviction, so that no
        `first_token` follows. The calling thread must also record the step, `failed` if no token came.
        """
        if key not in unrecorded:
            process.ring().note(_JOIN, samples_token, self.name, key, step, at_ns, cached_tokens)

    def first_token(self, key: int, step: int, at_ns: int) -> None:
        """The step sampled the request's first token, unforeseen: prefill ends; or its first one after an eviction."""
        if key not in unrecorded:
            process.ring().note(_FIRST_TOKEN, 0, self.name, key, step, at_ns)

    def leave(self, key: int, step: int, at_ns: int) -> None:
        """The request was evicted; `step` is the last in which it took part."""
        if key not in unrecorded:
            process.ring().note(_LEAVE, 0, self.name, key, step, at_ns)

    def finish(
        self, key: int, step: int, at_ns: int, output_tokens: int, prefill_steps: int = 1, *, aborted: bool = False
    ) -> None:
        """The step sampled the last token of the request, or the request ended there for another reason.

        aborted: the engine was told to give it up, by its caller or because a stop string has ended its text.
        """
        if key not in unrecorded:
            process.ring().note(_FINISH, aborted, self.name, key, step, at_ns, output_tokens, prefill_steps)

    def attribute(self, key: int, name: str, value: int) -> None:
        """Set an attribute of the request span, from a process that has only its key."""
        if key not in unrecorded:
            process.ring().note(_ATTRIBUTE, _INT, name, key, value)

    def step(
        self, number: int, begin_ns: int, end_ns: int, *, requests: int, prefill_tokens: int, decode_tokens: int,
        waiting: int = 0, preempted: int = 0, kv_usage: float = _UNKNOWN, failed: bool = False,
    ) -> None:  # fmt: skip
        """One iteration: `begin_ns` when it was planned, `end_ns` when its tokens were on the host, or it `failed`."""
        ring = process.ring()
        ring.step(
            failed, ring.string(self.name), number, begin_ns, end_ns,
            prefill_tokens, decode_tokens, requests, waiting, preempted, kv_usage,
        )  # fmt: skip


def step_work(name: str, number: int, execute_ns: int, sample_ns: int) -> None:
    """Note what of a step the model runner took, from a process that knows only the name of the engine."""
    process.ring().note(_STEP_WORK, 0, name, number, execute_ns, sample_ns)


def step_device(
    name: str, number: int, device: int, busy_ns: int, idle_ns: int = -1, begin_ns: int = 0, uncertainty_ns: int = 0,
    launch_ns: int = -1,
) -> None:  # fmt: skip
    """Note the device time of a step, before or long after the step itself is recorded; after its `step_layers`.

    device: index into `attributes.DEVICES`. begin_ns: on the host's clock, a `now_ns()` value, 0 where not known.
    idle_ns: since the step before, launch_ns: of the host; -1 where not known.
    """
    process.ring().note(_STEP_DEVICE, device, name, number, busy_ns, idle_ns, begin_ns, uncertainty_ns, launch_ns)


def step_layers(
    name: str, number: int, parts: str, times_ns: Sequence[float], steps: int, cost_ns: int,
    *, graph: bool = False, prefill: bool = False,
) -> None:  # fmt: skip
    """Note the device time of each part of the model in a sampled step: all records or, where they do not fit, none.

    parts: what `encode_parts` wrote, of as many parts as there are times. steps: how many steps it stands for.
    cost_ns: host time that sampling took. graph: the step replayed a CUDA graph. prefill: it computed prompt tokens.
    """
    ring = process.ring()
    data = struct.pack(f"<{len(times_ns)}f", *times_ns)
    chunks = [data[begin : begin + layout.CHUNK_BYTES] for begin in range(0, len(data), layout.CHUNK_BYTES)]
    name_bytes, parts_bytes = len(name.encode("utf-8", "replace")), len(parts.encode("utf-8", "replace"))
    if parts_bytes > layout.MAX_PARTS_BYTES:
        ring.drop(1 + len(chunks))
        return
    # Both texts may have to be registered first.
    if not ring.reserve(layout.chunks_of(name_bytes) + layout.chunks_of(parts_bytes) + 1 + len(chunks)):
        return
    engine, text = ring.string(name), ring.string(parts, layout.MAX_PARTS_BYTES)
    flags = graph * layout.LAYERS_GRAPH | prefill * layout.LAYERS_PREFILL
    ring.record(_LAYERS, flags, engine, number, text, len(times_ns), steps, cost_ns)
    for chunk, part in enumerate(chunks):
        ring.chunk(_LAYER_TIMES, chunk, engine, number, part)
