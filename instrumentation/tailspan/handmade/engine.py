"""`tailspan.Engine`: one scheduler of a hand-written worker, and who is in its batch.

One record a step, and one for each request that joins, samples its first token, comes back after an eviction or
finishes. Batch membership and token times of every request follow from those in the agent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from tailspan.engines.probing import probe_on
from tailspan.handmade.failsafe import swallow
from tailspan.handmade.graphs import CapturedGraph
from tailspan.handmade.handles import RequestHandle
from tailspan.handmade.seats import Seat
from tailspan.recorder import Engine as Recorder
from tailspan.recorder import now_ns
from tailspan.recorder.process import is_started

if TYPE_CHECKING:
    from tailspan.device.steps import StepProbe
    from tailspan.handmade.steps import StepScope

T = TypeVar("T")
_UNKNOWN = float("nan")


class Engine:
    """One scheduler with its batch. Make one for each model that the process runs; its steps come one after another.

    `name` is the software (`myengine`), `model` the model's name; both become attributes of spans. `module` is the
    `torch.nn.Module` that the steps run: then the device time of each step is measured, and that of the model's layers
    in some of them. Steps must come from one thread and launch their work on one stream.
    """

    def __init__(self, name: str, model: str = "", module: Any = None) -> None:
        self.name = name
        self.model = model
        self.module = module
        self.tells_tokens = False
        """Whether the worker ever said that a token was sampled."""
        self._reset()
        _engines.add(self)

    @property
    def id(self) -> str:
        """Value of `tailspan.engine.id` on the spans."""
        return self.recorder.id

    def queued(self, request: RequestHandle, prompt_tokens: int = 0) -> None:
        """Note that the engine has the request: its `queue` stage begins. Call it when the request is enqueued."""
        if request._request is None or not is_started():
            return
        try:
            with self.lock:
                if request._seat is None:
                    self._seat(request, now_ns(), prompt_tokens)
        except Exception as error:
            swallow(error)

    def capture(self, function: Callable[[], T], *, pool: Any = None, warm_up: int = 3) -> CapturedGraph[T]:
        """Capture a function in a CUDA graph, to be replayed in the steps: layers inside it are timed in some of them.

        function: works on tensors that stay where they are, and returns such; it is called `warm_up` times before, on a
        side stream, and then once, or twice where layers are timed. pool: memory to share with other graphs, theirs or
        of `torch.cuda.graph_pool_handle()`.

        Without CUDA nothing is captured, and each replay calls the function. Raises what the function or the capture
        raises. Call `tailspan.instrument()` before, and this outside of steps.
        """
        return CapturedGraph(self, function, pool, warm_up)

    def _reset(self) -> None:
        self.recorder = Recorder(self.name, self.model)
        self.open_step: StepScope | None = None
        self.open_number = 0
        self.last_step = 0
        self.last_end_ns = 0
        self.lock = threading.Lock()
        self._on_device: StepScope | None = None
        self.open_probe: StepProbe | None = None
        """What times the step whose work on the device has begun."""
        self._batch: tuple[RequestHandle, ...] = ()

    def _seat(self, handle: RequestHandle, at_ns: int, prompt_tokens: int) -> Seat | None:
        if handle._request is None:
            return None
        seat = handle._seat = Seat(self, handle, handle._request.key)
        self.recorder.queued(seat.key, at_ns, prompt_tokens)
        return seat

    def begin_step(self, step: StepScope, batch: tuple[RequestHandle, ...], at_ns: int) -> int:
        """Give the step its number and record who joined since the previous one."""
        with self.lock:
            number = self.recorder.next_step()
            if batch != self._batch:
                self._change(step, batch, number, at_ns)
            self.open_step, self.open_number = step, number
        return number

    def device_begins(self, step: StepScope) -> None:
        """The step's work on the device begins, unless that of another has not ended."""
        if self.module is None or self._on_device is not None:
            return
        probe = self.probe()
        if probe is not None:
            self._on_device, self.open_probe = step, probe
            probe.begin("prefill" if step.prefill_tokens else "decode")

    def device_ends(self, step: StepScope, *, failed: bool) -> None:
        """All of the step's work has been launched, or it `failed`."""
        if self._on_device is not step:
            return
        probe, self.open_probe = self.open_probe, None
        self._on_device = None
        if probe is not None:
            if failed:
                probe.abandon()
            else:
                probe.launched()
                probe.end(self.recorder.name, step.number)
                probe.poll()

    def probe(self) -> StepProbe | None:
        """Return what times the steps on the device of the module, None if nothing does."""
        return None if self.module is None else probe_on(self.module, self.id)

    def end_step(self, step: StepScope, end_ns: int) -> None:
        """Record the step, then the first and last tokens that it sampled."""
        with self.lock:
            self.recorder.step(
                step.number, step.begin_ns, end_ns, requests=len(step.batch), prefill_tokens=step.prefill_tokens,
                decode_tokens=step.noted_tokens if step.decode_tokens is None else step.decode_tokens,
                waiting=step.waiting, preempted=step.preempted,
                kv_usage=_UNKNOWN if step.kv_usage is None else step.kv_usage,
            )  # fmt: skip
            for seat in step.joined:
                seat.join_end_ns = end_ns
            for seat in step.first_tokens:
                seat.first_token(step.number, end_ns)
            if step.number >= self.last_step:
                self.last_step, self.last_end_ns = step.number, end_ns
            for seat in step.finishing:
                seat.record_finish(step.number, end_ns, sampled=True)
            if self.open_step is step:
                self.open_step = None

    def _change(self, step: StepScope, batch: tuple[RequestHandle, ...], number: int, at_ns: int) -> None:
        now, before = set(batch), set(self._batch)
        # A step that has not ended yet (the next one is planned ahead) has no end to give.
        seen_ns = self.last_end_ns if self.last_step == self.open_number and self.last_end_ns else at_ns
        for handle in self._batch:
            seat = handle._seat
            if handle not in now and seat is not None and not seat.finished:
                seat.leave(self.open_number, seen_ns)
                if handle._request is not None and handle._request.ended:
                    seat.close(at_ns, sampled=True)
        for handle in batch:
            if handle not in before and (seat := handle._seat or self._seat(handle, at_ns, 0)) is not None:
                if seat.finished or seat.engine is not self:
                    continue
                seat.join(number, at_ns)
                step.joined.append(seat)
        self._batch = batch


_engines: WeakSet[Engine] = WeakSet()


def _renew_after_fork() -> None:
    # The parent goes on numbering its steps: a child's copy is another engine.
    for engine in list(_engines):
        engine._reset()


os.register_at_fork(after_in_child=_renew_after_fork)
