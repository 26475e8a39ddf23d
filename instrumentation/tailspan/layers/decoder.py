"""Finds the decoder layers of a model: the longest list of modules that look like layers.

In:  any model, a `torch.nn.Module` of transformers, of vLLM or written by hand.
Out: `Decoder`, or the reason why there is none.

Layers of a list need not share a class (hybrids mix them), and some may be missing: a pipeline-parallel rank holds
placeholders for the layers of the others. Towers for images, sound or drafts are not the decoder, however long;
a list called `decoder` is preferred to one called `encoder`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tailspan.layers.kinds import children_of, is_block

_FOREIGN = re.compile(
    r"vision|visual|\bvit\b|image|pixel|video|audio|speech|sound|tower|draft|\bmtp|vae|vq"
    r"|multi_?modal|projector|connector|merger|q_?former|perceiver|resampler"
)
_ENCODER = re.compile(r"encoder")


@dataclass(frozen=True, slots=True)
class Decoder:
    """The list of layers: its path in the model, and each layer that is here with its number."""

    path: str
    layers: tuple[tuple[int, Any], ...]


def find_decoder(model: Any) -> Decoder | str:
    """Return the decoder of a model, or why there is none, as text for a log line."""
    found = [
        (path, layers)
        for path, module in _lists(model, "", set())
        if not is_foreign(path) and (layers := _layers_of(module))
    ]
    if not found:
        return (
            f"no list of decoder layers was found in {type(model).__name__}: "
            "no ModuleList whose modules hold an attention, mixer, MLP or experts"
        )
    path, layers = max(found, key=lambda item: (not _ENCODER.search(item[0]), len(item[1])))
    return Decoder(path, layers)


def is_foreign(path: str) -> bool:
    """Whether modules at this path belong to something else than the language model's decoder."""
    return bool(_FOREIGN.search(path.lower()))


def _lists(module: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield each module whose children are numbered from 0, outermost first."""
    if id(module) in seen:
        return
    seen.add(id(module))
    children = children_of(module)
    if children and [name for name, _ in children] == [str(index) for index in range(len(children))]:
        yield path, module
    for name, child in children:
        yield from _lists(child, f"{path}.{name}" if path else name, seen)


def _layers_of(module: Any) -> tuple[tuple[int, Any], ...]:
    """Return the modules of a list that look like decoder layers; nothing unless all do but placeholders."""
    layers = []
    for index, (_, child) in enumerate(children_of(module)):
        if is_block(child):
            layers.append((index, child))
        elif child._modules or child._parameters:
            return ()
    return tuple(layers)
