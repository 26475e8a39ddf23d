"""Sampling a step: the same outputs, everything put back, and times that add up to the step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tailspan.device.host import HostTimer
from tailspan.layers.governor import Governor
from tailspan.layers.kinds import OTHER
from tailspan.layers.parts import OUTSIDE, Part, decode_parts
from tailspan.layers.plan import Plan
from tailspan.layers.sampler import DECODE, PREFILL, LayerSampler, Sample
from tests.layers.architectures import ARCHITECTURES, tokens
from tests.layers.test_plan import planned

TIMER = HostTimer()


def sampled(
    sampler: LayerSampler, forward: Callable[[], Any], timer: Any = TIMER
) -> tuple[Any, Sample | None, dict[Part, float], int]:
    """Run a step as a step probe does; return its result, the sample, its times by part, and the ns of the step."""
    assert sampler.begin(timer, DECODE)
    begin = timer.record()
    try:
        result = forward()
    finally:
        end = timer.record()
        sample = sampler.end()
        sampler.stepped(DECODE, end - begin)
    times: dict[Part, float] = {}
    if sample is not None:
        times = dict(zip(decode_parts(sample.parts_text), sample.times(timer, begin, end), strict=True))
        sampler.stepped(DECODE, 10**9)  # pays for reading
    return result, sample, times, end - begin


def methods(plan: Plan) -> list[tuple[bool, Any]]:
    """Return for each site whether the object has the method itself, and which one."""
    return [(site.method in vars(site.owner), vars(site.owner).get(site.method)) for site in plan.sites]


class PlantedClock(HostTimer):
    """A clock on which only what a test plants takes time, and every mark a microsecond."""

    def __init__(self) -> None:
        self.now_ns = 0

    def record(self) -> int:  # type: ignore[override]
        """Return the time."""
        self.now_ns += 1_000
        return self.now_ns

    def pass_(self, ms: float) -> None:
        """Let time pass."""
        self.now_ns += round(ms * 1e6)


@contextmanager
def slowed(module: Any, ms: float, clock: PlantedClock) -> Iterator[Callable[..., Any]]:
    """Make a module's forward take time, by a function on the object itself; yields that function."""
    original = module.forward

    def slow(*args: Any, **kwargs: Any) -> Any:
        clock.pass_(ms)
        return original(*args, **kwargs)

    module.forward = slow
    yield slow
    del module.forward


@torch.no_grad()
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_outputs_are_identical_and_parts_add_up(name: str, eager: Governor) -> None:
    """A sampled step gives bit for bit the same logits; every part that ran has time, all within that of the step."""
    model = ARCHITECTURES[name]()
    expected = model(tokens()).logits
    plan = planned(model)
    before = methods(plan)
    result, sample, times, step_ns = sampled(LayerSampler(plan, eager), lambda: model(tokens()).logits)
    assert torch.equal(result, expected)
    assert methods(plan) == before
    assert torch.equal(model(tokens()).logits, expected)
    assert sample is not None
    assert all(times[part] > 0 for part in plan.parts if part.kind not in (OTHER, "sampler"))
    assert 0 < sum(times.values()) <= step_ns


@torch.no_grad()
@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("model.layers.1.mlp.down_proj", Part(1, "mlp")),
        ("model.layers.2.self_attn.q_proj", Part(2, "attention")),
        ("model.layers.0.post_attention_layernorm", Part(0, "norm")),
        ("model.embed_tokens", Part(OUTSIDE, "embedding")),
        ("model.norm", Part(OUTSIDE, "norm")),
        ("lm_head", Part(OUTSIDE, "lm_head")),
        ("model.rotary_emb", Part(OUTSIDE, "other")),
    ],
)
def test_slow_module_is_found(path: str, part: Part, eager: Governor) -> None:
    """A module that takes 30 ms is that time of the part that it belongs to, and of no other."""
    model = ARCHITECTURES["llama"]()
    plan = planned(model)
    module = model.get_submodule(path)
    assert plan.owner_of(module) == part
    clock = PlantedClock()
    with slowed(module, 30, clock) as slow:
        _, _, times, _ = sampled(LayerSampler(plan, eager), lambda: model(tokens()), clock)
        assert vars(module)["forward"] is slow
    assert times[part] == pytest.approx(30e6, rel=1e-3)
    assert sum(times.values()) == pytest.approx(30e6, rel=1e-3)


@torch.no_grad()
def test_time_after_the_forward_is_the_sampler(eager: Governor) -> None:
    """Without a sampler of the engine, what follows the model's forward until the end mark is sampling."""
    model = ARCHITECTURES["llama"]()
    clock = PlantedClock()
    _, _, times, _ = sampled(LayerSampler(planned(model), eager), lambda: (model(tokens()), clock.pass_(20)), clock)
    assert times[Part(OUTSIDE, "sampler")] == pytest.approx(20e6, rel=1e-3)


@torch.no_grad()
def test_several_passes_in_a_step_are_summed(eager: Governor) -> None:
    """A step that calls the model three times, as chunked prefill does, has the time of all of them."""
    model = ARCHITECTURES["llama"]()
    clock = PlantedClock()
    with slowed(model.model.layers[1].mlp, 10, clock):
        forward = lambda: [model(tokens()) for _ in range(3)]  # noqa: E731
        _, _, times, _ = sampled(LayerSampler(planned(model), eager), forward, clock)
    assert times[Part(1, "mlp")] == pytest.approx(30e6)


@torch.no_grad()
def test_method_of_the_model_is_a_site(eager: Governor) -> None:
    """Logits from a method, as in vLLM, are timed, and the method is put back."""
    from tests.layers.test_plan import _HandMade

    model = _HandMade()
    plan = planned(model)
    expected = model.compute_logits(model(torch.tensor([1, 2])))
    result, _, times, _ = sampled(LayerSampler(plan, eager), lambda: model.compute_logits(model(torch.tensor([1, 2]))))
    assert torch.equal(result, expected)
    assert times[Part(OUTSIDE, "lm_head")] > 0
    assert "compute_logits" not in vars(model)


@torch.no_grad()
def test_exception_of_the_model_passes_unchanged(eager: Governor) -> None:
    """An error in a module reaches the engine as it is; taps are gone, and the next step can be sampled."""
    model = ARCHITECTURES["llama"]()
    plan = planned(model)
    sampler = LayerSampler(plan, eager)
    error = RuntimeError("out of memory")

    def fail(*_: Any) -> None:
        raise error

    before = methods(plan)
    module = model.model.layers[2].mlp
    module.act_fn, activation = _Failing(fail), module.act_fn
    with pytest.raises(RuntimeError) as raised:
        sampled(sampler, lambda: model(tokens()))
    assert raised.value is error
    assert methods(plan) == before
    module.act_fn = activation
    _, sample, _, _ = sampled(sampler, lambda: model(tokens()))
    assert sample is not None


class _Failing(torch.nn.Module):
    def __init__(self, fail: Callable[..., None]) -> None:
        super().__init__()
        self.forward = fail


@torch.no_grad()
def test_caught_exception_leaves_the_sample_right(eager: Governor) -> None:
    """A pass that fails and is tried again by the engine within the step leaves marks in pairs."""
    model = ARCHITECTURES["llama"]()
    clock = PlantedClock()
    with slowed(model.model.layers[1].mlp, 10, clock):

        def forward() -> None:
            with pytest.raises(IndexError):
                model(torch.tensor([[10**6]]))
            model(tokens())

        _, sample, times, step_ns = sampled(LayerSampler(planned(model), eager), forward, clock)
    assert sample is not None
    assert times[Part(1, "mlp")] == pytest.approx(10e6)
    assert sum(times.values()) <= step_ns


@torch.no_grad()
def test_other_threads_are_not_timed(eager: Governor) -> None:
    """A second thread that runs the same model during a sampled step leaves no marks in it."""
    model = ARCHITECTURES["llama"]()
    sampler = LayerSampler(planned(model), eager)
    _, alone, _, _ = sampled(sampler, lambda: model(tokens()))

    def both() -> None:
        thread = threading.Thread(target=torch.no_grad()(lambda: model(tokens())))
        thread.start()
        thread.join()
        model(tokens())

    _, sample, _, _ = sampled(sampler, both)
    assert alone is not None
    assert sample is not None
    assert len(sample.marks) == len(alone.marks)


@torch.no_grad()
def test_second_sampler_leaves_the_model_alone(eager: Governor) -> None:
    """While one sampler has its taps in a model, another one of the same model does not sample its step."""
    model = ARCHITECTURES["llama"]()
    plan = planned(model)
    first, second = (
        LayerSampler(plan, eager),
        LayerSampler(planned(model), Governor(1.0, first_cost_ns=0, interval_ns=0)),
    )
    assert first.begin(TIMER, DECODE)
    assert not second.begin(TIMER, DECODE)
    assert second.end() is None
    assert first.end() is None  # no layer ran
    assert second.begin(TIMER, DECODE)
    second.end()
    assert not any(own for own, _ in methods(plan))


class _Exhausted(HostTimer):
    """A timer that has only some marks."""

    def __init__(self, marks: int) -> None:
        super().__init__()
        self.left = marks
        self.released: list[int] = []

    def record(self) -> int | None:  # type: ignore[override]
        self.left -= 1
        return HostTimer.record() if self.left >= 0 else None

    def release(self, marks: Any) -> None:
        self.released += marks


@torch.no_grad()
def test_sample_without_all_marks_is_dropped_and_counted(eager: Governor) -> None:
    """When the timer runs out of marks the sample is lost, the marks that it had go back, the outputs stay."""
    model = ARCHITECTURES["llama"]()
    timer = _Exhausted(10)
    sampler = LayerSampler(planned(model), eager)
    expected = model(tokens()).logits
    assert sampler.begin(timer, DECODE)
    assert torch.equal(model(tokens()).logits, expected)
    assert sampler.end() is None
    assert (sampler.incomplete, len(timer.released)) == (1, 10)


def test_step_that_calls_no_layer_is_counted_as_blind(eager: Governor) -> None:
    """A step in which no layer was called, as when a CUDA graph runs, gives no sample."""
    sampler = LayerSampler(planned(ARCHITECTURES["llama"]()), eager)
    assert sampler.begin(TIMER, PREFILL)
    assert sampler.end() is None
    assert (sampler.blind, sampler.incomplete) == (1, 0)


@torch.no_grad()
def test_times_that_the_device_cannot_tell_are_empty(eager: Governor) -> None:
    """After a failure of the device there are no times, rather than wrong ones."""

    class Failed(HostTimer):
        def elapsed_ns(self, begin: int, end: int) -> int:
            return -1

    model = ARCHITECTURES["llama"]()
    _, sample, _, _ = sampled(LayerSampler(planned(model), eager), lambda: model(tokens()))
    assert sample is not None
    assert list(sample.times(Failed(), 0, 1)) == []


@torch.no_grad()
def test_method_replaced_between_samples_is_called(eager: Governor) -> None:
    """What another tool puts on a module, or on its class, after the first sample is called in the next."""
    model = ARCHITECTURES["llama"]()
    plan = planned(model)
    sampler = LayerSampler(plan, eager)
    sampled(sampler, lambda: model(tokens()))
    calls: list[str] = []
    module, kind = model.model.layers[0].mlp, type(model.model.norm)
    original, of_class = module.forward, kind.forward
    module.forward = lambda x: (calls.append("object"), original(x))[1]
    kind.forward = lambda self, x: (calls.append("class"), of_class(self, x))[1]
    try:
        sampled(sampler, lambda: model(tokens()))
    finally:
        kind.forward = of_class
    assert calls.count("object") == 1
    assert calls.count("class") == 7
    calls.clear()
    sampled(sampler, lambda: model(tokens()))
    assert calls == ["object"]


@torch.no_grad()
def test_replacement_over_a_tap_stays(eager: Governor) -> None:
    """What another tool puts on a module during a sampled step is still there afterwards, and harmless."""
    model = ARCHITECTURES["llama"]()
    sampler = LayerSampler(planned(model), eager)
    module = model.model.layers[0].mlp
    assert sampler.begin(TIMER, DECODE)
    tap = module.forward
    module.forward = theirs = lambda x: tap(x)
    expected = model(tokens()).logits
    sampler.end()
    sampler.stepped(DECODE, 10**9)
    assert module.forward is theirs
    assert torch.equal(model(tokens()).logits, expected)
    _, sample, times, _ = sampled(sampler, lambda: model(tokens()))
    assert sample is not None
    assert times[Part(0, "mlp")] > 0


@torch.no_grad()
def test_sample_stands_for_the_steps_before_it(eager: Governor) -> None:
    """A sample tells how many steps of its phase passed since the last one, and its phase."""
    model = ARCHITECTURES["llama"]()
    sampler = LayerSampler(planned(model), eager)
    for phase, steps in ((PREFILL, 2), (DECODE, 3)):
        for _ in range(steps):
            sampler.stepped(phase, 10**6)
    assert sampler.begin(TIMER, DECODE)
    model(tokens())
    sample = sampler.end()
    assert sample is not None
    assert (sample.steps, sample.prefill, sample.graph) == (4, False, False)


@torch.no_grad()
def test_compiled_model_is_left_alone(eager: Governor) -> None:
    """Once transformers has compiled the model for `generate`, taps would make it compile again: no step is sampled."""
    model = ARCHITECTURES["llama"]()
    sampler = LayerSampler(planned(model), eager)
    model._compiled_call = lambda: None
    assert not sampler.begin(TIMER, DECODE)
    del model._compiled_call
    assert sampler.begin(TIMER, DECODE)
    sampler.end()


@torch.no_grad()
def test_taps_let_a_compiler_through(eager: Governor) -> None:
    """A tracer that reads the model while taps are in sees the model alone and leaves no marks."""
    model = ARCHITECTURES["llama"]()
    plan = planned(model)
    sampler = LayerSampler(plan, eager)
    layer = model.model.layers[0].mlp
    expected = layer(torch.ones(1, 2, 32))
    assert sampler.begin(TIMER, DECODE)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(1, 2, 32)), expected)
    sampler.end()
    assert sampler.blind == 1
