"""One `generate()` call while it runs: its steps, from the times at which tokens reach the host.

Every forward pass with its sampling is a step; the first is the prefill, whose logits give the first token. With
`prefill_chunk_size` the chunks are forward passes within that step: `prefill_steps` counts them.
Units: monotonic ns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailspan import attributes as attr
from tailspan.asgi import exchange_of
from tailspan.engines import transformers_forward
from tailspan.engines.transformers_models import model_name, pool
from tailspan.recorder import Request, now_ns

_OWN_STREAMERS = frozenset({"TextStreamer", "DirectStreamer"})
CANCELLED = "_GenerationCancelled"
"""Exception by which `transformers serve` stops a generation that nobody waits for."""


class Run:
    """The state of an outermost `generate()` call; used by one thread."""

    __slots__ = (
        "_engine", "_finished", "_host_ns", "_is_on_device", "_last_step", "_length", "_new_tokens", "_on_host",
        "_prefill_steps", "_probe", "_prompt_length", "_prompt_tokens", "_put_end_ns", "_puts", "_rows",
        "_sets_output", "_step", "_step_begin_ns", "_step_end_ns", "_tokens", "_waiting", "model", "owned",
        "puts_before_criteria", "request",
    )  # fmt: skip

    def __init__(
        self, model: Any, request: Request, owned: bool, begin_ns: int, streamer: Any, waiting: Callable[[], int] | None
    ) -> None:
        """Join the batch of one request; the first step begins with the call."""
        self.model = model
        self.request = request
        self.owned = owned
        self.puts_before_criteria = False
        self._engine = pool.acquire(model)
        self._probe = transformers_forward.probe(model, self._engine)
        self._is_on_device = False
        # tailspan's own streamer hooks know better when output reaches the response.
        self._sets_output = not any(cls.__name__ in _OWN_STREAMERS for cls in type(streamer).__mro__)
        self._waiting = waiting
        self._rows = 1
        self._prompt_length = self._length = -1
        self._prompt_tokens = 0
        self._prefill_steps = 1
        self._tokens = 0
        self._new_tokens = 0
        self._on_host = False
        self._host_ns = 0
        self._puts = 0
        self._put_end_ns = 0
        self._finished = False
        self._last_step = 0
        self._step_begin_ns = self._step_end_ns = begin_ns
        self._step = self._engine.next_step()
        self._engine.join(request.key, self._step, begin_ns, samples_token=True)

    def queued(self, at_ns: int) -> None:
        """Record the begin of the queue where no server did."""
        self._engine.queued(self.request.key, at_ns)

    def prepared(self, generation_config: Any, model_input_name: str, inputs: Any, length: int) -> None:
        """`generate()` knows its inputs: prompt length after expansion, number of prompts and beams."""
        prompts = int(inputs.shape[0])
        self._prompt_length = self._length = length
        self._rows = prompts * max(
            getattr(generation_config, "num_beams", 1) or 1,
            getattr(generation_config, "num_return_sequences", 1) or 1,
        )
        prompt_length = int(inputs.shape[1]) if model_input_name in ("input_ids", "inputs_embeds") else length
        self._prompt_tokens = prompts * prompt_length
        chunk = getattr(generation_config, "prefill_chunk_size", None)
        self._prefill_steps = -(-prompt_length // chunk) if chunk else 1
        self.request.attribute(attr.GEN_AI_INPUT_TOKENS, self._prompt_tokens)
        if self.owned:
            self.request.attribute(attr.PROMPTS, prompts)

    def forward_begins(self) -> None:
        """The model computes next: the device's part of the step begins, unless it is one of several passes."""
        if self._probe is not None and not self._is_on_device:
            self._is_on_device = True
            self._probe.begin("decode" if self._last_step else "prefill")

    def forward_returned(self) -> None:
        """The forward pass has been launched; on a CPU, computed."""
        if self._probe is not None and self._is_on_device:
            self._probe.launched()

    def sampled(self, input_ids: Any) -> None:
        """The stopping criteria see the new tokens: on the host now on a CPU, else once the loop has waited."""
        if self._probe is not None and self._is_on_device:
            self._is_on_device = False
            self._step = self._step or self._engine.next_step()
            self._probe.end(self._engine.name, self._step)
        length = input_ids.shape[1]
        self._new_tokens = max(0, length - self._length) if self._length >= 0 else 1
        self._length = length
        if self._host_ns:
            self._close_step(self._host_ns)
        elif self._on_host:
            self._close_step(now_ns())
        elif input_ids.device.type == "cpu":
            self._on_host = True
            self._close_step(now_ns())

    def next_iteration(self) -> None:
        """The loop has read on the host whether it goes on."""
        if self._new_tokens:
            self._close_step(now_ns())

    def put_begins(self, at_ns: int) -> bool:
        """A streamer receives tokens, which are on the host; return whether they are output, not the prompt."""
        self._puts += 1
        if self._puts == 1:
            return False
        if self._new_tokens:
            self._close_step(at_ns)
        elif self.puts_before_criteria:
            self._host_ns = at_ns
        return True

    def put_ended(self, at_ns: int) -> None:
        """The streamer is done, the next step begins."""
        self._put_end_ns = at_ns
        if not self.puts_before_criteria and self._last_step:
            self._step_begin_ns = at_ns

    def finish(self, at_ns: int, output_tokens: int) -> None:
        """Record once that the engine is done with the request."""
        if not self._finished:
            self._finished = True
            self._engine.finish(
                self.request.key, self._last_step or self._step, at_ns, output_tokens, self._prefill_steps
            )

    def stream_ends(self) -> None:
        """The streamer is told that the last token was put: finish before anybody can learn of it."""
        if self._new_tokens:
            self._close_step(now_ns())
        self.finish(self._step_end_ns, self._tokens * self._rows)

    def returned(self, result: Any) -> None:
        """`generate()` returned: finish at the last step."""
        now = now_ns()
        if self._new_tokens:
            self._close_step(now)
        self.finish(self._step_end_ns if self._last_step else now, self._output_tokens(result))
        self._close(now, "ok", "")

    def raised(self, error: BaseException) -> None:
        """`generate()` raised: the step that was under way ends here."""
        now = now_ns()
        name = type(error).__name__
        if self._new_tokens:
            self._close_step(now)
        elif name != CANCELLED and not self._finished:
            self._close_step(now, failed=True)
        self.finish(now, self._tokens * self._rows)
        if not isinstance(error, Exception) or name == CANCELLED:
            self._close(now, "cancelled", "")
            return
        exchange = exchange_of(self.request)
        if exchange is not None:
            exchange.engine_error(name, reported=False)
        self._close(now, "error", name)

    def _close(self, at_ns: int, outcome: str, error_type: str) -> None:
        if self._probe is not None:
            if self._is_on_device:
                self._probe.abandon()
            self._probe.poll()
        pool.release(self.model, self._engine)
        if self.owned:
            self.request.end(at_ns, outcome, error_type)
        else:
            exchange = exchange_of(self.request)
            if exchange is not None and not exchange.model_known:
                self.request.attribute(attr.GEN_AI_MODEL, model_name(self.model))

    def _close_step(self, at_ns: int, failed: bool = False) -> None:
        engine, new_tokens = self._engine, self._new_tokens
        number = self._step or engine.next_step()
        is_prefill = not self._last_step
        engine.step(
            number,
            self._step_begin_ns,
            at_ns,
            requests=1,
            prefill_tokens=self._prompt_tokens if is_prefill else 0,
            decode_tokens=0 if is_prefill else new_tokens * self._rows,
            waiting=self._waiting() if self._waiting is not None else 0,
            failed=failed,
        )
        if is_prefill and not failed and self._sets_output:
            self.request.has_output = True
        if not failed:
            self._tokens += new_tokens
            self._last_step = number
        self._step = self._new_tokens = self._host_ns = 0
        self._step_end_ns = at_ns
        self._step_begin_ns = max(at_ns, self._put_end_ns)
        if self._probe is not None:
            self._probe.poll()

    def _output_tokens(self, result: Any) -> int:
        sequences = getattr(result, "sequences", result)
        shape: tuple[int, ...] = getattr(sequences, "shape", ())
        if len(shape) == 2 and self._prompt_length >= 0:
            return max(0, int(shape[1]) - self._prompt_length) * int(shape[0])
        return self._tokens * self._rows
