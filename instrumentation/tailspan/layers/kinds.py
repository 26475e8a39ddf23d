"""Which kind of part a module is: by the name of its class, by its structure, then by its own name.

In:  a `torch.nn.Module` and its name in its parent.
Out: one of the kinds below, or `""` for a module that is none of them.

Class names start with the name of the model, which says nothing (`Qwen3MoeAttention` is an attention, `JambaAttention`
no mixer): their end decides. `mixer` is whatever mixes tokens without attending to all of them: state spaces, linear
attention, recurrences, short convolutions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

EMBEDDING: Final = "embedding"
NORM: Final = "norm"
ATTENTION: Final = "attention"
MIXER: Final = "mixer"
MLP: Final = "mlp"
EXPERTS: Final = "experts"
LM_HEAD: Final = "lm_head"
SAMPLER: Final = "sampler"
OTHER: Final = "other"
LAYER_KINDS: Final = (NORM, MIXER, ATTENTION, MLP, EXPERTS, OTHER)
"""Kinds in a decoder layer, in the order in which parts are listed."""

_NORM_CLASS = re.compile(r"norm(gated)?\w{0,2}$")
_MIXER_CLASS = re.compile(
    r"((linear|lightning|delta|retnet|mamba)_?attention"
    r"|mamba|ssm|deltanet|retention|recurrent|rglru|shortconv|lstm|hyena|gla|mixer)_?v?\d*(layer|block|wrapper)?$"
    r"|^rwkv\d*\w*attention$"
)
_ATTENTION_CLASS = re.compile(r"(attention|attn)\w{0,2}(layer|block|wrapper)?$")
_EXPERTS_CLASS = re.compile(r"(moe|experts)(layer|block)?$")
_MLP_CLASS = re.compile(r"(mlp|ffn|ff|feedforward)(layer|block)?\d?$")
_BLOCK_CLASS = re.compile(r"layer|block|norm.*(attention|attn)")

_NORM_NAME = re.compile(r"norm|^ln(_|\d|$)|_ln\d?$")
_MIXER_NAME = re.compile(r"^(mamba\d?|ssm|linear_attn|linear_attention|mixer|time_mix\w*|short_conv|temporal_block)$")
_ATTENTION_NAME = re.compile(r"attn|attention")
_EXPERTS_NAME = re.compile(r"^(experts?|router|moe\w*|\w+_moe)$")
_MLP_NAME = re.compile(
    r"mlp|ffn|feed_?forward|channel_mix|^(ff|fc\d?|fc_(in|out)|dense_\w+_to_\w+|intermediate|output)$"
)
_EMBEDDING_CLASS = re.compile(r"embeddings?$")
_SHARED_NAME = re.compile(r"shared")
_EPSILONS = ("eps", "epsilon", "variance_epsilon", "norm_eps")
_CONTAINERS = ("ModuleList", "ModuleDict")
"""Classes of modules that only hold others and are never called themselves."""


def children_of(module: Any) -> list[tuple[str, Any]]:
    """Return the module's children with their names; one that is there twice is listed twice."""
    return [(name, child) for name, child in module._modules.items() if child is not None]


def is_container(module: Any) -> bool:
    """Whether the module only holds others: it is never called."""
    return type(module).__name__ in _CONTAINERS


def kind_of(name: str, module: Any) -> str:
    """Return the kind of a module inside a decoder layer, `""` for none: then its children may be of one."""
    if is_container(module):
        return ""
    label = type(module).__name__.lower()
    if is_norm(name, module):
        return NORM
    if _BLOCK_CLASS.search(label) and _holds_parts(module):
        return ""
    children = module._modules
    if _MIXER_CLASS.search(label):
        return MIXER
    if _ATTENTION_CLASS.search(label):
        return ATTENTION
    if "experts" in children or "router" in children or _EXPERTS_CLASS.search(label):
        return EXPERTS
    if _MLP_CLASS.search(label):
        return MLP
    return _kind_by_name(name.lower(), module)


def is_norm(name: str, module: Any) -> bool:
    """Whether the module normalises: by its class, or a leaf with only vectors and an epsilon, or one named so."""
    label = type(module).__name__.lower()
    if _NORM_CLASS.search(label) and not _ATTENTION_NAME.search(label):
        return True
    if module._modules:
        return False
    vectors = [weight for weight in module._parameters.values() if weight is not None]
    if not vectors or any(weight.dim() != 1 for weight in vectors):
        return False
    return any(hasattr(module, epsilon) for epsilon in _EPSILONS) or bool(_NORM_NAME.search(name.lower()))


def is_embedding(module: Any) -> bool:
    """Whether the module is a table of vectors, of tokens or of learned positions."""
    weight = module._parameters.get("weight")
    return bool(_EMBEDDING_CLASS.search(type(module).__name__.lower())) and weight is not None and weight.dim() == 2


def is_shared(name: str) -> bool:
    """Whether a module of this name beside experts is the one that every token uses."""
    return bool(_SHARED_NAME.search(name.lower()))


def has_parameters(module: Any) -> bool:
    """Whether the module itself, not a child, has a parameter."""
    return any(weight is not None for weight in module._parameters.values())


def parts_of(module: Any, prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield `(kind, name, module)` of the outermost modules inside this one that are of a kind, depth first."""
    held = prefix if is_container(module) else ""
    for name, child in children_of(module):
        path = f"{prefix}{name}"
        kind = kind_of(held + name, child)
        if kind:
            yield kind, path, child
        else:
            yield from parts_of(child, f"{path}.")


def is_block(module: Any) -> bool:
    """Whether the module looks like a decoder layer: it is of no kind itself and holds one that does the work."""
    return not kind_of("", module) and any(kind != NORM for kind, _, _ in parts_of(module))


def _holds_parts(module: Any) -> bool:
    """Whether children of a module that is called a layer or block are parts of their own, so that it is none."""
    kinds = {kind_of(name, child) for name, child in children_of(module)}
    return NORM in kinds and bool(kinds & {ATTENTION, MIXER, MLP, EXPERTS})


def _kind_by_name(name: str, module: Any) -> str:
    if not module._modules and not has_parameters(module):
        return ""
    for kind, pattern in (
        (MIXER, _MIXER_NAME),
        (ATTENTION, _ATTENTION_NAME),
        (EXPERTS, _EXPERTS_NAME),
        (MLP, _MLP_NAME),
    ):
        if pattern.search(name):
            return kind
    return ""
