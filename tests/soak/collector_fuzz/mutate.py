"""Structure-aware mutations of OTLP requests in protobuf and JSON.

In: a valid request and a random generator. Out: other bytes; what became of them is for `judge` to say.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

from tests.conformance.bombs import nested_value
from tests.soak.collector_fuzz.wire import FIXED, FIXED64, HUGE, LENGTH, VARINT, Field, every, varint

Tree = list[Field]
INVALID_TEXT = (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"ok\x80", b"\x00\xff\x00")


def _pick(rng: random.Random, tree: Tree, wanted: Callable[[Field], bool]) -> tuple[Tree, int] | None:
    places = [(fields, index) for fields, index in every(tree) if wanted(fields[index])]
    return rng.choice(places) if places else None


def _change(wanted: Callable[[Field], bool]) -> Callable[..., Callable[[random.Random, Tree], None]]:
    """Make a mutation of a change to one field that is wanted."""

    def decorate(change: Callable[[random.Random, Tree, int], None]) -> Callable[[random.Random, Tree], None]:
        def mutate(rng: random.Random, tree: Tree) -> None:
            place = _pick(rng, tree, wanted)
            if place is not None:
                change(rng, *place)

        mutate.__name__ = change.__name__
        return mutate

    return decorate


@_change(lambda item: item.wire == LENGTH)
def lie_about_a_length(rng: random.Random, fields: Tree, index: int) -> None:
    """Claim a length that is a bit or far from the truth."""
    true = len(fields[index].encode())
    near, far = (max(0, true - 3), true - 1, true + 1, true * 2, 0), (2**31 - 1, 2**32, 2**63, 2**64 - 1)
    fields[index].length = rng.choice((*near, *far))


@_change(lambda item: True)
def another_wire_type(rng: random.Random, fields: Tree, index: int) -> None:
    """Keep number and bytes of a field under another wire type, groups included."""
    item = fields[index]
    item.tag = varint(item.number << 3 | rng.choice([wire for wire in range(8) if wire != item.wire]))


@_change(lambda item: True)
def another_number(rng: random.Random, fields: Tree, index: int) -> None:
    """Give a field the number of another one, or one that does not exist."""
    fields[index].tag = varint(rng.choice((0, *range(1, 20), 5000, 2**29 - 1, 2**32)) << 3 | fields[index].wire)


@_change(lambda item: True)
def duplicate(rng: random.Random, fields: Tree, index: int) -> None:
    """Send a field 2 to 50 times."""
    fields[index:index] = [fields[index]] * rng.choice((1, 1, 2, 2, 49))


@_change(lambda item: True)
def leave_out(rng: random.Random, fields: Tree, index: int) -> None:
    """Leave a field out."""
    del fields[index]


@_change(lambda item: item.wire == VARINT)
def huge_varint(rng: random.Random, fields: Tree, index: int) -> None:
    """Write a varint that is too large or too long."""
    fields[index].payload = rng.choice(HUGE)


@_change(lambda item: item.wire == FIXED64)
def extreme_number(rng: random.Random, fields: Tree, index: int) -> None:
    """Write a time at an end of its range."""
    fields[index].payload = rng.choice(FIXED)


@_change(lambda item: item.is_text)
def invalid_text(rng: random.Random, fields: Tree, index: int) -> None:
    """Write text that is no UTF-8."""
    fields[index].payload = rng.choice(INVALID_TEXT)


@_change(lambda item: item.parts is None and item.wire == LENGTH)
def other_bytes(rng: random.Random, fields: Tree, index: int) -> None:
    """Write an id or text of another length."""
    fields[index].payload = rng.randbytes(rng.choice((0, 1, 7, 9, 15, 17, 40, 300)))


@_change(lambda item: item.parts is not None and item.number == 2 and len(item.parts) == 1)
def deep_value(rng: random.Random, fields: Tree, index: int) -> None:
    """Nest a value deeply."""
    item = fields[index]
    depth, kind = rng.choice((2, 50, 95, 101, 101, 500, 3000)), rng.choice(("array", "kvlist"))
    item.parts, item.payload = None, nested_value(depth, kind)


def swap(rng: random.Random, tree: Tree) -> None:
    """Put two fields from anywhere into each other's place."""
    first, second = _pick(rng, tree, lambda _: True), _pick(rng, tree, lambda _: True)
    if first is not None and second is not None:
        (a, i), (b, j) = first, second
        left, right = copy.deepcopy(a[i]), copy.deepcopy(b[j])
        a[i], b[j] = right, left


TREE_MUTATIONS: tuple[Callable[[random.Random, Tree], None], ...] = (
    lie_about_a_length, another_wire_type, another_number, duplicate, leave_out, huge_varint, extreme_number,
    invalid_text, other_bytes, deep_value, swap,
)  # fmt: skip


def flip_bits(rng: random.Random, body: bytes) -> bytes:
    """Flip 1 to 8 bits."""
    out = bytearray(body)
    for _ in range(rng.choice((1, 1, 2, 8))):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def truncate(rng: random.Random, body: bytes) -> bytes:
    """Cut the end off."""
    return body[: rng.randrange(1, len(body))]


def splice(rng: random.Random, body: bytes) -> bytes:
    """Put noise into the middle, or take some out."""
    at, length = rng.randrange(len(body)), rng.randrange(1, 20)
    return body[:at] + rng.randbytes(length) + body[at + rng.choice((0, length)) :]


BYTE_MUTATIONS: tuple[Callable[[random.Random, bytes], bytes], ...] = (flip_bits, truncate, splice)


def protobuf(rng: random.Random, make_tree: Callable[[], Tree], body: bytes) -> tuple[str, bytes]:
    """Return the name of a mutation and the mutated request; `make_tree` returns the tree of `body`, to be spoiled."""
    if rng.random() < 0.25:
        change = rng.choice(BYTE_MUTATIONS)
        return change.__name__, change(rng, body)
    mutate, tree = rng.choice(TREE_MUTATIONS), make_tree()
    mutate(rng, tree)
    return mutate.__name__, b"".join(item.encode() for item in tree)


JSON_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 2**63, 2**64, "", "x", "-1", "1e3", "SPAN_KIND_SERVER", "\ud800", [], {}, [[]],
    {"a": [None]}, "AAAA", "zz" * 16, [1, "2", {}],
)  # fmt: skip


def as_json(rng: random.Random, text: bytes) -> tuple[str, bytes]:
    """Return the name of a mutation and the mutated JSON."""
    if rng.random() < 0.3:
        change = rng.choice(BYTE_MUTATIONS)
        return f"json {change.__name__}", change(rng, text)
    changed = json.loads(text)
    places: list[tuple[Any, Any]] = []
    _places(changed, places)
    holder, key = rng.choice(places)
    kind = rng.choice(("value", "remove", "rename", "wrap"))
    if kind == "value":
        holder[key] = rng.choice(JSON_VALUES)
    elif kind == "remove":
        del holder[key]
    elif kind == "rename" and isinstance(holder, dict):
        holder[rng.choice(("x", "trace_id", "", "kind", "value", "stringValue", "spans"))] = holder.pop(key)
    else:
        for _ in range(rng.choice((1, 1, 1, 30, 90, 110, 700))):
            holder[key] = rng.choice(([holder[key]], {"arrayValue": {"values": [holder[key]]}}))
    try:
        return f"json {kind}", json.dumps(changed).encode()
    except RecursionError:
        return "json nested", b"[" * 100_000


def _places(value: Any, found: list[tuple[Any, Any]]) -> None:
    for key in value if isinstance(value, dict) else range(len(value)):
        found.append((value, key))
        if isinstance(value[key], (dict, list)):
            _places(value[key], found)
