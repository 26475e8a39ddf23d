"""What a client asked of an endpoint: model, stream flag and the id that it will be answered with."""

from __future__ import annotations

from functools import lru_cache

from tailspan import attributes as attr
from tailspan.recorder import AttributeSet, Request

MAX_MODELS, MAX_MODEL_LENGTH = 32, 200
_models: set[str] = set()


def describe(request: Request, model: str, stream: bool, response_id: str = "") -> None:
    """Set the attributes of what was asked."""
    # The client chooses the name: only a few may become names that a ring keeps.
    if model in _models or (len(_models) < MAX_MODELS and len(model) <= MAX_MODEL_LENGTH):
        _models.add(model)
        request.describe(_asked(model, stream), response_id)
    else:
        request.describe(_asked("", stream), response_id)
        request.text(attr.GEN_AI_MODEL, model)


@lru_cache(maxsize=64)
def _asked(model: str, stream: bool) -> AttributeSet:
    return AttributeSet({attr.GEN_AI_STREAM: stream} | ({attr.GEN_AI_MODEL: model} if model else {}))
