"""The device's side of continuous batching: begin and end of each step on the stream that computes it, and the layers.

A step whose layers are sampled runs without `torch.compile` and CUDA graphs, which know no modules: as in the pass by
which transformers warms up, with the same inputs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tailspan.engines.probing import probe_on
from tailspan.engines.transformers_batch import Batch
from tailspan.guard import Guard

if TYPE_CHECKING:
    from tailspan.device.steps import StepProbe

_GUARD = Guard("transformers.batching.device")
Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


class _Step(threading.local):
    """The step that the engine's thread computes."""

    batch: Batch | None = None
    is_sampled = False


_step = _Step()


def run_step(wrapped: Function, batch: Batch | None, args: Arguments, kwargs: Keywords) -> Any:
    """Let the engine compute the step that it planned last."""
    _step.batch = batch
    try:
        return wrapped(*args, **kwargs)
    finally:
        _step.batch = None


def compute(wrapped: Function, runner: Any, args: Arguments, kwargs: Keywords) -> Any:
    """`ModelRunner.compute_batch`: forward pass and sampling, launched on the stream that computes."""
    batch, probe, number = _step.batch, None, 0
    if batch is None:  # a warm-up
        return wrapped(*args, **kwargs)
    stream = runner.inputs_and_outputs.compute_stream
    with _GUARD:
        number, is_prefill = batch.planned_last()
        probe = probe_on(args[0] if args else kwargs["model"], batch.engine.id) if number else None
        if probe is not None:
            with _on(stream):
                _step.is_sampled = probe.begin("prefill" if is_prefill else "decode")
    try:
        result = wrapped(*args, **kwargs)
    except BaseException:
        _abandon(probe)
        raise
    finally:
        _step.is_sampled = False
    if probe is not None:
        with _GUARD:
            probe.launched()
            with _on(stream):
                probe.end(batch.engine.name, number)
    return result


def forward_function(wrapped: Function, runner: Any, args: Arguments, kwargs: Keywords) -> Any:
    """`ModelRunner._get_forward_fn`: for a sampled step the one that is neither compiled nor in a CUDA graph."""
    chosen = wrapped(*args, **kwargs)
    return (runner._forward_process_and_sample, False) if _step.is_sampled else chosen


def _abandon(probe: StepProbe | None) -> None:
    if probe is not None:
        with _GUARD:
            probe.abandon()


def _on(stream: Any) -> contextlib.AbstractContextManager[Any]:
    if stream is None:
        return contextlib.nullcontext()
    import torch

    context: contextlib.AbstractContextManager[Any] = torch.cuda.stream(stream)
    return context
