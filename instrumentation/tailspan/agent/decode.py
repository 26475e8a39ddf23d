"""From the slots of one ring to records with their strings resolved.

In: 64-byte slots in ring order. Out: events, `Record`, `Step`, `EngineInfo` and those of `device`. A string is always
registered before its first use in the same ring, so one pass is enough; an id whose registration was dropped reads as
an empty string.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tailspan.agent.device import DeviceTime, LayerGroup, Layers, StepWork, device_time
from tailspan.recorder import layout
from tailspan.recorder.layout import AttributeType, Kind

Value = str | bool | int | float | tuple[str, ...] | tuple[float, ...]


class Record(NamedTuple):
    """One record about a request; see `layout.Kind` for the meaning of the numbers."""

    kind: Kind
    key: int
    name: str
    flags: int = 0
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    e: int = 0
    value: Value | None = None
    """Of an attribute; of BEGIN the JSON object of attributes; of QUEUED and ATTRIBUTES the response id."""


class Step(NamedTuple):
    """One engine step as the worker saw it; times in monotonic ns, `kv_usage_ratio` None when unknown."""

    engine: str
    number: int
    begin_ns: int
    end_ns: int
    prefill_tokens: int
    decode_tokens: int
    requests: int
    waiting: int
    preempted: int
    kv_usage_ratio: float | None
    failed: bool = False
    """Whether it ended without tokens."""


class EngineInfo(NamedTuple):
    """The software and model behind an engine id."""

    engine: str
    software: str
    model: str


Event = Record | Step | EngineInfo | StepWork | DeviceTime | Layers

# Plain numbers: looking a member up in an enumeration costs a good part of a record.
_KINDS = {int(kind): kind for kind in Kind}
_STRING, _ATTRIBUTE, _TEXT_ATTRIBUTE = int(Kind.STRING), int(Kind.ATTRIBUTE), int(Kind.TEXT_ATTRIBUTE)
_BEGIN, _QUEUED, _ATTRIBUTES, _STEP = int(Kind.BEGIN), int(Kind.QUEUED), int(Kind.ATTRIBUTES), int(Kind.STEP)
_STEP_DEVICE, _STEP_WORK, _LAYERS = int(Kind.STEP_DEVICE), int(Kind.STEP_WORK), int(Kind.LAYERS)
_DOUBLE_TYPE, _BOOL_TYPE, _STRING_TYPE = int(AttributeType.DOUBLE), int(AttributeType.BOOL), int(AttributeType.STRING)


class RingDecoder:
    """Keeps the string table, unfinished texts and unfinished layer times of one ring."""

    __slots__ = ("_layers", "_parts", "_strings", "_texts")

    def __init__(self) -> None:
        """Start with an empty string table."""
        self._strings: dict[int, str] = {}
        self._parts: dict[int, bytes] = {}
        self._texts: dict[tuple[int, int], bytes] = {}
        self._layers = LayerGroup()

    def decode(self, slots: Iterable[bytes]) -> Iterator[Event]:
        """Yield the events of the slots; raises `ValueError` at a record of unknown kind."""
        unpack, name_of = layout.RECORD.unpack, self._strings.get
        for slot in slots:
            number, flags, name, key, a, b, c, d, e, _ = record = unpack(slot)
            kind = _KINDS.get(number)
            if kind is None:
                raise ValueError(f"{number} is not a valid {Kind.__name__}")
            if number == _STRING:
                yield from self._string(slot)
            elif number == _STEP:
                yield self._step(slot)
            elif number == _STEP_WORK:
                yield StepWork(name_of(name, ""), key, a, b)
            elif number > _STEP:
                if (event := self._device(record, slot)) is not None:
                    yield event
            elif number == _TEXT_ATTRIBUTE:
                yield from self._text(slot)
            elif number == _BEGIN:
                yield Record(kind, key, name_of(name, ""), flags, a, b, c, d, value=name_of(e))
            elif number == _QUEUED:
                yield Record(kind, key, name_of(name, ""), flags, a, b, value=_response_id(flags, slot[-32:-8]))
            elif number == _ATTRIBUTES:
                yield Record(kind, key, name_of(name, ""), flags, value=_response_id(flags, slot[-48:-8]))
            else:
                value = self._value(flags, a, slot) if number == _ATTRIBUTE else None
                yield Record(kind, key, name_of(name, ""), flags, a, b, c, d, e, value)

    def _string(self, slot: bytes) -> Iterator[EngineInfo]:
        _, chunk, name, length, data, _ = layout.CHUNK_RECORD.unpack(slot)
        known = self._parts.pop(name, b"") if chunk else b""
        known += data
        if len(known) >= length:
            text = known[:length].decode("utf-8", "replace")
            if not text.startswith(layout.ENGINE_SEPARATOR):
                self._strings[name] = text
                return
            parts: list[str] = text.split(layout.ENGINE_SEPARATOR, 3)[1:]
            engine, software, model = parts + [""] * (3 - len(parts))
            self._strings[name] = engine
            yield EngineInfo(engine, software, model)
        else:
            self._parts[name] = known

    def _text(self, slot: bytes) -> Iterator[Record]:
        _, flags, name, key, data, _ = layout.CHUNK_RECORD.unpack(slot)
        text = (self._texts.pop((key, name), b"") if flags >> 1 else b"") + data
        if flags & 1:
            value = text.rstrip(b"\0").decode("utf-8", "replace")
            yield Record(Kind.ATTRIBUTE, key, self._name(name), value=value)
        else:
            self._texts[key, name] = text

    def _value(self, flags: int, a: int, slot: bytes) -> Value:
        if flags == _DOUBLE_TYPE:
            return float(layout.DOUBLE_RECORD.unpack(slot)[4])
        if flags == _BOOL_TYPE:
            return bool(a)
        return self._name(a) if flags == _STRING_TYPE else a

    def _step(self, slot: bytes) -> Step:
        (_, flags, engine, number, begin, end, prefill, decode, requests, waiting, preempted, kv_usage, _) = (
            layout.STEP_RECORD.unpack(slot)
        )
        usage = None if math.isnan(kv_usage) else round(kv_usage, 6)
        failed = bool(flags & layout.FAILED)
        return Step(
            self._name(engine), number, begin, end, prefill, decode, requests, waiting, preempted, usage, failed
        )

    def _device(self, record: tuple[int, ...], slot: bytes) -> DeviceTime | Layers | None:
        if record[0] == _STEP_DEVICE:
            return device_time(self._name(record[2]), record)
        if record[0] == _LAYERS:
            self._layers.begin(record, self._name)
            return None
        return self._layers.add(slot)

    def _name(self, identifier: int) -> str:
        return self._strings.get(identifier, "")


def _response_id(flags: int, data: bytes) -> str | None:
    return data.rstrip(b"\0").decode("utf-8", "replace") if flags & layout.HAS_RESPONSE_ID else None
