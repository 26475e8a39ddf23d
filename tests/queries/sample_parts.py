"""Which part of the sample a trace falls into, computed apart from ClickHouse.

Source: SipHash-2-4 (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012), with a key of zeros.
"""

from __future__ import annotations

PARTS = 4096
_MASK = 2**64 - 1
_BEGIN = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def part_of(trace_id: bytes) -> int:
    """Return the part that a trace falls into."""
    return siphash(trace_id) % PARTS


def siphash(data: bytes) -> int:
    """Return the hash of some bytes."""
    state = _BEGIN
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for place in range(0, len(padded), 8):
        word = int.from_bytes(padded[place : place + 8], "little")
        a, b, c, d = _round(_round((state[0], state[1], state[2], state[3] ^ word)))
        state = (a ^ word, b, c, d)
    state = (state[0], state[1], state[2] ^ 0xFF, state[3])
    for _ in range(4):
        state = _round(state)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _round(state: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    a, b, c, d = state
    a, c = (a + b) & _MASK, (c + d) & _MASK
    b, d = _rotated(b, 13) ^ a, _rotated(d, 16) ^ c
    a = _rotated(a, 32)
    a, c = (a + d) & _MASK, (c + b) & _MASK
    d, b = _rotated(d, 21) ^ a, _rotated(b, 17) ^ c
    return a, b, _rotated(c, 32), d


def _rotated(word: int, bits: int) -> int:
    return ((word << bits) | (word >> (64 - bits))) & _MASK
