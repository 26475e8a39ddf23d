"""From the slots of one ring to records with their strings resolved.

In: 64-byte slots in ring order. Out: `Record` and `Step` objects. A string is always registered before its first use in
the same ring, so one pass is enough; an id whose registration was dropped reads as an empty string.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tailspan.recorder import layout
from tailspan.recorder.layout import AttributeType, Kind

Value = str | bool | int | float


@dataclass(frozen=True, slots=True)
class Record:
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


@dataclass(frozen=True, slots=True)
class Step:
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


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The software and model behind an engine id."""

    engine: str
    software: str
    model: str


Event = Record | Step | EngineInfo


class RingDecoder:
    """Keeps the string table and unfinished texts of one ring."""

    __slots__ = ("_parts", "_strings", "_texts")

    def __init__(self) -> None:
        """Start with an empty string table."""
        self._strings: dict[int, str] = {}
        self._parts: dict[int, bytes] = {}
        self._texts: dict[tuple[int, int], bytes] = {}

    def decode(self, slots: Iterable[bytes]) -> Iterator[Event]:
        """Yield the events of the slots; raises `ValueError` at a record of unknown kind."""
        for slot in slots:
            kind = Kind(int.from_bytes(slot[:2], "little"))
            if kind is Kind.STEP:
                yield self._step(slot)
            elif kind is Kind.STRING:
                self._string(slot)
            elif kind is Kind.TEXT_ATTRIBUTE:
                yield from self._text(slot)
            else:
                yield self._record(kind, slot)

    def _string(self, slot: bytes) -> None:
        _, chunk, name, length, data, _ = layout.CHUNK_RECORD.unpack(slot)
        known = self._parts.pop(name, b"") if chunk else b""
        known += data
        if len(known) >= length:
            self._strings[name] = known[:length].decode("utf-8", "replace")
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

    def _record(self, kind: Kind, slot: bytes) -> Event:
        _, flags, name, key, a, b, c, d, e, _ = layout.RECORD.unpack(slot)
        if kind is Kind.ENGINE:
            return EngineInfo(self._name(name), self._name(a), self._name(b))
        value = self._value(flags, a, slot) if kind is Kind.ATTRIBUTE else None
        return Record(kind, key, self._name(name), flags, a, b, c, d, e, value)

    def _value(self, flags: int, a: int, slot: bytes) -> Value:
        if flags == AttributeType.DOUBLE:
            return float(layout.DOUBLE_RECORD.unpack(slot)[4])
        if flags == AttributeType.BOOL:
            return bool(a)
        return self._name(a) if flags == AttributeType.STRING else a

    def _step(self, slot: bytes) -> Step:
        (_, _, engine, number, begin, end, prefill, decode, requests, waiting, preempted, kv_usage, _) = (
            layout.STEP_RECORD.unpack(slot)
        )
        usage = None if math.isnan(kv_usage) else round(kv_usage, 6)
        return Step(self._name(engine), number, begin, end, prefill, decode, requests, waiting, preempted, usage)

    def _name(self, identifier: int) -> str:
        return self._strings.get(identifier, "")
