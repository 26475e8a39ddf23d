"""The device's side of a step in one vLLM model runner: where its work begins and ends, and the model's layers.

The device begins with the forward pass and ends with sampling; a draft model's work after that belongs to the step too.
The second runner (`v1/worker/gpu/model_runner.py`) has no function around its forward pass alone: there preparing the
inputs counts.

A step whose layers are sampled runs without compiled code and CUDA graphs, which know no modules; its text is the same.
Several ranks must all run the same code, so that their layers are sampled where nothing is compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailspan.engines.probing import new_probe

if TYPE_CHECKING:
    from tailspan.device.steps import StepProbe

_RUN = "tailspan_run"


class _Run:
    """The step that a runner is in."""

    __slots__ = ("drafts", "forward", "is_open", "phase", "probe", "stance", "step", "switches")

    def __init__(self) -> None:
        self.forward = self.switches = self.drafts = self.is_open = False
        self.probe: StepProbe | None = None
        self.step: tuple[str, int] = ("", 0)
        self.phase = "decode"
        self.stance: Any = None
        """While the forward pass of a sampled step leaves compiled code."""

    def look_at(self, runner: Any) -> None:
        compilation = runner.vllm_config.compilation_config
        is_eager = not int(getattr(compilation, "mode", 0) or 0) and not _has_graphs(compilation)
        self.forward = hasattr(type(runner), "_model_forward")
        """Whether the forward pass is a function of its own."""
        self.switches = not is_eager and self.forward and runner.parallel_config.world_size == 1 and _can_leave()
        """Whether a sampled step must leave compiled code."""
        self.probe = new_probe(
            runner.get_model(), runner.device, sampler=getattr(runner, "sampler", None),
            with_layers=is_eager or self.switches, slows_step=self.switches,
        )  # fmt: skip
        self.drafts = getattr(runner, "speculative_config", None) is not None

    def begin(self) -> None:
        if self.probe is not None and not self.is_open:
            self.is_open = True
            if self.probe.begin(self.phase) and self.switches:
                self.stance = _leave_compiled_code()

    def forward_ended(self) -> None:
        stance, self.stance = self.stance, None
        if stance is not None:
            stance.__exit__(None, None, None)

    def end(self) -> None:
        if self.probe is not None and self.is_open:
            self.is_open = False
            self.probe.end(*self.step)

    def abandon(self) -> None:
        if self.probe is not None and self.is_open:
            self.forward_ended()
            self.is_open = False
            self.step = ("", 0)
            self.probe.abandon()


def planned(runner: Any, step: tuple[str, int], output: Any) -> None:
    """The runner gets a step: name of its engine and its number."""
    run: _Run | None = getattr(runner, _RUN, None)
    if run is None:
        run = _Run()
        setattr(runner, _RUN, run)  # first: what fails with this runner is not tried again
        run.look_at(runner)
    run.abandon()  # a step whose sampling raised
    if run.probe is None or not output.total_num_scheduled_tokens:
        return
    run.step = step
    is_decode = output.total_num_scheduled_tokens == len(output.num_scheduled_tokens)
    run.phase = "decode" if is_decode else "prefill"
    if not run.forward:
        run.begin()


def forward_begins(runner: Any) -> None:
    """The forward pass of the step is launched next; of a warm-up there is none."""
    run: _Run | None = getattr(runner, _RUN, None)
    if run is not None and run.step[1]:
        run.begin()


def forward_returned(runner: Any) -> None:
    """It has been launched; on a CPU, computed."""
    run: _Run | None = getattr(runner, _RUN, None)
    if run is not None and run.is_open and run.probe is not None:
        run.forward_ended()
        run.probe.launched()


def sampled(runner: Any) -> None:
    """Sampling has been launched."""
    run: _Run | None = getattr(runner, _RUN, None)
    if run is not None and not run.drafts:
        run.end()


def ended(runner: Any) -> None:
    """The runner is done with the step; its tokens may be on the host."""
    run: _Run | None = getattr(runner, _RUN, None)
    if run is not None and run.probe is not None:
        run.end()
        run.step = ("", 0)
        run.probe.poll()


def failed(runner: Any) -> None:
    """The step raised."""
    run: _Run | None = getattr(runner, _RUN, None)
    if run is not None:
        run.abandon()


def _has_graphs(compilation: Any) -> bool:
    mode = getattr(compilation, "cudagraph_mode", None)
    return mode is not None and getattr(mode, "name", "NONE") != "NONE"


def _can_leave() -> bool:
    from vllm.forward_context import ForwardContext

    return "skip_compiled" in ForwardContext.__dataclass_fields__  # from vLLM 0.16 on


def _leave_compiled_code() -> Any:
    """Let the forward pass that begins run uncompiled and without CUDA graphs; return what ends that."""
    import torch
    from vllm.config import CUDAGraphMode
    from vllm.forward_context import get_forward_context

    context = get_forward_context()
    context.skip_compiled = True
    context.cudagraph_runtime_mode = CUDAGraphMode.NONE
    # Outside of a compiled model vLLM compiles some operations by themselves: seconds, the first time.
    stance = torch.compiler.set_stance("force_eager")
    stance.__enter__()
    return stance
