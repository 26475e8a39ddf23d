"""The parts of a model as a short text, for the recorder, and back; pure functions without torch.

A part is `(layer, kind)`; layer -1 is outside of the decoder layers. Layers of the same kinds in a row are one piece:
`embedding|0-29:norm,attention,mlp,other|norm|lm_head|sampler`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

OUTSIDE = -1
"""`layer` of a part that is in no decoder layer."""


class Part(NamedTuple):
    """A part of a model."""

    layer: int
    kind: str

    @property
    def name(self) -> str:
        """`attention` of layer 3 is `3/attention`; outside of the layers the kind alone."""
        return self.kind if self.layer == OUTSIDE else f"{self.layer}/{self.kind}"


def encode_parts(parts: Sequence[Part]) -> str:
    """Return the text; parts of one layer must follow each other."""
    written: list[tuple[int, int, str]] = []
    for layer, group in groupby(parts, key=lambda part: part.layer):
        if layer == OUTSIDE:
            written += [(OUTSIDE, OUTSIDE, part.kind) for part in group]
            continue
        kinds = ",".join(part.kind for part in group)
        if written and written[-1][1] == layer - 1 and written[-1][0] != OUTSIDE and written[-1][2] == kinds:
            written[-1] = (written[-1][0], layer, kinds)
        else:
            written.append((layer, layer, kinds))
    return "|".join(kinds if first == OUTSIDE else f"{first}-{last}:{kinds}" for first, last, kinds in written)


def decode_parts(text: str) -> list[Part]:
    """Return the parts; raises `ValueError` for a text that `encode_parts` did not write."""
    return [part for piece in text.split("|") for part in _parts(piece)] if text else []


def _parts(piece: str) -> Iterator[Part]:
    layers, colon, kinds = piece.rpartition(":")
    if not colon:
        yield Part(OUTSIDE, piece)
        return
    first, _, last = layers.partition("-")
    for layer in range(int(first), int(last) + 1):
        for kind in kinds.split(","):
            yield Part(layer, kind)
