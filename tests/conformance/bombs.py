"""Bytes that unpack or unfold to far more than they are."""

from __future__ import annotations

import functools
import zlib

import zstandard

from tests.conformance.wire import field, varint

MIB = 1024 * 1024
_BLOCK = 16 * MIB


def deflated(size_mib: int, *, window: int) -> bytes:
    """Return a stream of zlib (15), raw (-15) or gzip (31) form that unpacks to `size_mib` MiB of zeros."""
    engine = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = engine.compress(bytes(_BLOCK)) + engine.flush(zlib.Z_FULL_FLUSH)
    head = {15: b"\x78\x9c", -15: b"", 31: b"\x1f\x8b\x08\0\0\0\0\0\0\xff"}[window]
    # Blocks after a full flush stand alone, so that one may be repeated; the checksum at the end is never reached.
    return head + block * (size_mib * MIB // _BLOCK) + b"\x03\x00" + bytes(8)


def zstd(size_mib: int) -> bytes:
    """Return zstd frames that unpack to `size_mib` MiB of zeros, without saying how much that is."""
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(_BLOCK))
    return frame * (size_mib * MIB // _BLOCK)


@functools.lru_cache
def nested_value(depth: int, kind: str) -> bytes:
    """Return an AnyValue of lists (`array`) or maps (`kvlist`) inside each other, `depth` deep."""
    heads: list[bytes] = []
    size = 2
    for _ in range(depth):
        if kind == "kvlist":  # AnyValue.kvlist_value { values { key: "", value: AnyValue } }
            for number in (2, 1, 6):
                heads.append(bytes([number << 3 | 2]) + varint(size))
                size += len(heads[-1])
        else:  # AnyValue.array_value { values: AnyValue }
            for number in (1, 5):
                heads.append(bytes([number << 3 | 2]) + varint(size))
                size += len(heads[-1])
    return b"".join(reversed(heads)) + b"\x18\x01"


def with_attribute(message: bytes, path: tuple[int, ...], attribute_field: int, value: bytes) -> bytes:
    """Append one more resource with one item whose attribute `deep` has that value, to the bytes of a request.

    `path` are the field numbers from the request down to the item.
    """
    inner = field(attribute_field, field(1, b"deep") + field(2, value))
    for number in reversed(path):
        inner = field(number, inner)
    return message + inner
