"""An executor for vLLM that computes nothing: everything around the model is the installed version's own.

It samples a token for every sequence whose known tokens are all computed by a step, as a model would; the n-th token
of any sequence is the same. So it needs no compiled code, which fits only the torch that a version was built with.
vLLM takes it by name, as it takes anybody's: `distributed_executor_backend="tests.vllm.versions.no_model.NoModel"`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ClassVar

import torch
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput

FIRST_TOKEN = 400
"""Of SmolLM2's vocabulary: this one and those after it are parts of words."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ran:
    """A step as the executor saw it, to compare records with: tokens by request, and who was evicted before it."""

    tokens: dict[str, int]
    evicted: list[str]


class NoModel(Executor):  # type: ignore[misc] # untyped base
    """One layer's worth of KV cache and a stand-in for sampling."""

    ran: ClassVar[list[Ran]] = []
    cached: ClassVar[dict[str, int]] = {}
    """By request: tokens of its prompt that were in the KV cache when it was first scheduled."""

    def _init_executor(self) -> None:
        self._prompt_tokens: dict[str, int] = {}
        self._planned: Any = None

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
        **_: Any,
    ) -> Any:
        """Answer what the engine asks its workers at start-up; all else needs no answer."""
        block_size = self.cache_config.block_size or 16
        layer = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=64, dtype=torch.float32)
        answers: dict[Any, Any] = {
            "get_kv_cache_spec": {"model.layers.0.self_attn.attn": layer},
            "determine_available_memory": 1 << 26,
            "get_supported_kv_cache_layouts": ["NHD"],
            "get_supported_tasks": ("generate",),
        }
        return [answers[method]] if method in answers else []

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Remember the step; a model would compute its logits and return None."""
        self._planned = scheduler_output
        if scheduler_output.num_scheduled_tokens:
            evicted = sorted(scheduler_output.preempted_req_ids or ())
            self.ran.append(Ran(dict(scheduler_output.num_scheduled_tokens), evicted))
        empty = None if scheduler_output.total_num_scheduled_tokens else self._output({})
        return _future(empty) if non_block else empty

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """Return the tokens of the step."""
        planned = self._planned
        known = {}
        for new in planned.scheduled_new_reqs:
            self._prompt_tokens[new.req_id] = len(new.prompt_token_ids)
            self.cached.setdefault(new.req_id, new.num_computed_tokens)
            known[new.req_id] = (new.num_computed_tokens, 0)
        cached = planned.scheduled_cached_reqs
        known |= {
            request_id: (computed, outputs)
            for request_id, computed, outputs in zip(
                cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True
            )
        }
        sampled = {}
        for request_id, count in planned.num_scheduled_tokens.items():
            computed, outputs = known[request_id]
            is_complete = computed + count >= self._prompt_tokens[request_id] + outputs
            sampled[request_id] = [FIRST_TOKEN + outputs % 100] if is_complete else []
        output = self._output(sampled)
        return _future(output) if non_block else output

    def _output(self, sampled: dict[str, list[int]]) -> Any:
        values = {
            "req_ids": list(sampled),
            "req_id_to_index": {request_id: index for index, request_id in enumerate(sampled)},
            "sampled_token_ids": list(sampled.values()),
            "logprobs": None,
            "prompt_logprobs_dict": dict.fromkeys(sampled),
            "pooler_output": [],
        }
        fields = {field.name for field in dataclasses.fields(ModelRunnerOutput)}
        return ModelRunnerOutput(**{name: value for name, value in values.items() if name in fields})

    def check_health(self) -> None:
        """Nothing can be ill."""


def _future(value: Any) -> Future[Any]:
    done: Future[Any] = Future()
    done.set_result(value)
    return done
