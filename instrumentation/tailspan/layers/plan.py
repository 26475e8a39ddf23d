"""What a model consists of and where its time is taken: its parts, and the calls that feed them.

In:  a model, a `torch.nn.Module` of transformers, of vLLM or written by hand, and the engine's sampler if it has one.
Out: `Plan`, or the reason why there is none.

Each module belongs to one part: that of the outermost module of a kind which holds it (a norm inside an attention is
attention, a shared expert is experts), else `other` of its layer, else `other`. All norms of a layer are one part. A
module in two layers belongs to the first. A Parameter that two modules share counts for the one listed first, so tied
weights are of the embedding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tailspan.layers.decoder import Decoder, find_decoder, is_foreign
from tailspan.layers.kinds import (
    EMBEDDING,
    EXPERTS,
    LAYER_KINDS,
    LM_HEAD,
    MLP,
    NORM,
    OTHER,
    SAMPLER,
    children_of,
    is_embedding,
    is_norm,
    is_shared,
    parts_of,
)
from tailspan.layers.parts import OUTSIDE, Part, encode_parts

_HEADS = frozenset({"lm_head", "embed_out", "output_head", "unembed", "output", "output_layer", "head"})


@dataclass(frozen=True, slots=True)
class Site:
    """A call that is timed: `owner.method(...)`, whose time goes to the part of this index."""

    owner: Any
    method: str
    part: int
    is_layer: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts of a model in order of execution, and the calls that feed them, outermost first.

    `other` is the index of what is outside of everything, `sampler` that of sampling, `parameters` the number of
    weights of each part. It holds the model: keep it where the model is kept, so that both go together.
    """

    model: Any
    parts: tuple[Part, ...]
    sites: tuple[Site, ...]
    parameters: tuple[int, ...]
    has_sampler: bool
    parts_text: str
    _owners: dict[int, int] = field(repr=False)

    @property
    def other(self) -> int:
        """Index of the part for what is outside of everything."""
        return len(self.parts) - 1

    @property
    def sampler(self) -> int:
        """Index of the part for sampling."""
        return len(self.parts) - 2

    def owner_of(self, module: Any) -> Part:
        """Return the part that a module of the model belongs to; raises `KeyError` for any other module."""
        return self.parts[self._owners[id(module)]]


def plan_of(model: Any, sampler: Any = None) -> Plan | str:
    """Return the plan of a model, or why there is none, as text for a log line; never raises.

    `sampler` is the module that samples, if the engine has one: its time is then that part alone.
    """
    try:
        decoder = find_decoder(model)
        return decoder if isinstance(decoder, str) else _Planner(model, decoder, sampler).plan()
    except Exception as error:  # a model of any shape may come: the engine never sees an error of ours
        return f"the layers of {type(model).__name__} could not be told apart: {type(error).__name__}: {error}"


class _Planner:
    """Collects parts and sites while it walks through a model once."""

    def __init__(self, model: Any, decoder: Decoder, sampler: Any) -> None:
        self._model = model
        self._decoder = decoder
        # One that is not called through `forward` cannot be timed: sampling is then what follows the model.
        self._sampler = sampler if callable(getattr(type(sampler), "forward", None)) else None
        self._head = _head_of(model)
        self._owners: dict[int, Part] = {}
        self._sites: list[tuple[Any, str, Part, bool]] = []

    def plan(self) -> Plan:
        other = Part(OUTSIDE, OTHER)
        self._sites.append((self._model, "forward", other, False))
        for number, layer in self._decoder.layers:
            self._add_layer(number, layer)
        self._add_outside(self._model, "")
        compute_logits = getattr(self._model, "compute_logits", None)
        if callable(compute_logits):
            self._sites.append((self._model, "compute_logits", Part(OUTSIDE, LM_HEAD), False))
        if self._sampler is not None:
            self._sites.append((self._sampler, "forward", Part(OUTSIDE, SAMPLER), False))
        parts = self._ordered_parts()
        index = {part: number for number, part in enumerate(parts)}
        owners = {module: index[part] for module, part in self._owners.items()}
        return Plan(
            model=self._model,
            parts=parts,
            sites=tuple(Site(owner, method, index[part], is_layer) for owner, method, part, is_layer in self._sites),
            parameters=_count(self._model, owners, len(parts)),
            has_sampler=self._sampler is not None,
            parts_text=encode_parts(parts),
            _owners=owners,
        )

    def _add_layer(self, number: int, layer: Any) -> None:
        if id(layer) in self._owners:
            return
        self._sites.append((layer, "forward", Part(number, OTHER), True))
        found = list(parts_of(layer))
        has_experts = any(kind == EXPERTS for kind, _, _ in found)
        for kind, path, module in found:
            shared = has_experts and kind == MLP and is_shared(path)
            self._add(module, Part(number, EXPERTS if shared else kind))
        self._own(layer, Part(number, OTHER))

    def _add(self, module: Any, part: Part) -> None:
        if id(module) not in self._owners:
            self._sites.append((module, "forward", part, False))
            self._own(module, part)

    def _own(self, module: Any, part: Part) -> None:
        for inner in module.modules():
            self._owners.setdefault(id(inner), part)

    def _add_outside(self, module: Any, path: str) -> None:
        """Put modules outside of the layers into their parts; what is inside a layer has its part already."""
        if id(module) in self._owners:
            return
        kind = "" if is_foreign(path) else self._kind_outside(path.rpartition(".")[2], module)
        if kind:
            self._add(module, Part(OUTSIDE, kind))
            return
        self._owners[id(module)] = Part(OUTSIDE, OTHER)
        for name, child in children_of(module):
            self._add_outside(child, f"{path}.{name}" if path else name)

    def _kind_outside(self, name: str, module: Any) -> str:
        if is_embedding(module) and module is not self._head:
            return EMBEDDING
        if is_norm(name, module):
            return NORM
        is_head = module is self._head or (self._head is None and name in _HEADS)
        return LM_HEAD if is_head and module is not self._model else ""

    def _ordered_parts(self) -> tuple[Part, ...]:
        used = set(self._owners.values()) | {part for _, _, part, _ in self._sites}
        ordered = [Part(OUTSIDE, EMBEDDING)]
        ordered += [Part(number, kind) for number, _ in self._decoder.layers for kind in LAYER_KINDS]
        ordered += [Part(OUTSIDE, NORM), Part(OUTSIDE, LM_HEAD)]
        return (*(part for part in ordered if part in used), Part(OUTSIDE, SAMPLER), Part(OUTSIDE, OTHER))


def _head_of(model: Any) -> Any:
    """Return the module that transformers names as the output embedding, None if there is none or nobody says."""
    getter = getattr(model, "get_output_embeddings", None)
    return getter() if callable(getter) else None


def _count(model: Any, owners: dict[int, int], parts: int) -> tuple[int, ...]:
    """Return the number of weights of each part; one that modules share counts for the first in the model's order."""
    counts, seen = [0] * parts, set[int]()
    for module in model.modules():
        for weight in module._parameters.values():
            if weight is not None and id(weight) not in seen:
                seen.add(id(weight))
                counts[owners[id(module)]] += weight.numel()
    return tuple(counts)
