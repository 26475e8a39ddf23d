"""Device time and layers of transformers and of hand-written engines, on the CPU's clock."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import tailspan
from tailspan.agent.device import DeviceTime, Layers
from tailspan.agent.worker import WorkerRings
from tailspan.engines import probing, transformers_forward
from tailspan.engines import transformers as engine
from tailspan.layers import governor
from tailspan.recorder import process
from tailspan.settings import WORKER_DIR, Settings
from tests.engines.conftest import make_model
from tests.engines.recorded import Recorded
from tests.engines.test_batching import generation, settings

PROMPT = torch.arange(10)[None]
NEW = 24


class Told:
    """The device's side of what this process recorded."""

    def __init__(self, directory: Path) -> None:
        self._rings = WorkerRings(directory)
        self.times: list[DeviceTime] = []
        self.layers: list[Layers] = []

    def read(self) -> None:
        """Take in everything recorded so far."""
        self._rings.discover()
        for _ in range(3):
            for _, events in self._rings.read():
                self.times += [event for event in events if isinstance(event, DeviceTime)]
                self.layers += [event for event in events if isinstance(event, Layers)]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """A started recorder; layers may cost half of the time and are sampled without a pause between."""
    directory = tmp_path / "worker"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv(WORKER_DIR, str(directory))
    monkeypatch.setenv("TAILSPAN_LAYER_BUDGET", "50")
    monkeypatch.setattr(governor, "Governor", partial(governor.Governor, interval_ns=0, first_cost_ns=1))
    process.start(Settings.from_environment())
    patcher = engine.patcher()
    patcher.apply()
    yield Told(directory)
    patcher.undo()
    process.close()


def test_every_step_of_generate_has_its_device_time(told: Told) -> None:
    """One record for each step, in order, none overlapping another, with the idle time between them."""
    make_model().generate(PROMPT, max_new_tokens=NEW)
    told.read()
    assert [time.number for time in told.times] == list(range(1, NEW + 1))
    assert {time.device for time in told.times} == {"cpu"}
    assert told.times[0].idle_ns is None
    for before, after in zip(told.times, told.times[1:], strict=False):
        assert before.begin_ns is not None
        assert after.begin_ns is not None
        assert after.idle_ns == after.begin_ns - before.begin_ns - before.busy_ns >= 0
        assert after.launch_ns is None


def test_layers_of_generate(told: Told) -> None:
    """Sampled steps name every part of the model; together they are the step, less what the marks took."""
    model = make_model(layers=3)
    # A first sample on a busy machine may cost what many steps allow for.
    model.generate(PROMPT, max_new_tokens=5 * NEW)
    told.read()
    busy_ns = {time.number: time.busy_ns for time in told.times}
    assert len(told.layers) >= 3
    assert sum(sample.steps for sample in told.layers) <= 5 * NEW
    for sample in told.layers:
        assert {f"{layer}/{kind}" for layer in range(3) for kind in ("norm", "attention", "mlp")} < set(sample.parts)
        assert {"embedding", "norm", "lm_head", "sampler"} < set(sample.parts)
        assert 0 < sum(sample.ns) <= busy_ns[sample.number]
        assert sample.cost_ns > 0
    assert {sample.mode for sample in told.layers} == {"eager"}


def test_the_text_is_the_same_with_layers(told: Told) -> None:
    """Greedy decoding gives the same tokens while layers are timed."""
    model = make_model()
    plain = type(model).generate.__wrapped__(model, PROMPT, max_new_tokens=NEW, do_sample=False)
    assert torch.equal(plain, model.generate(PROMPT, max_new_tokens=NEW, do_sample=False))
    told.read()
    assert told.layers


def test_steps_of_continuous_batching_have_device_time_and_layers(told: Told) -> None:
    """So do the steps of a batch; warm-up is none."""
    prompts = [list(range(10)), list(range(40)), list(range(5))]
    results = make_model().generate_batch(prompts, generation(12), settings())
    assert [len(result.generated_tokens) for result in results.values()] == [12, 12, 12]
    told.read()
    numbers = [time.number for time in told.times]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 12
    assert told.layers
    assert {sample.phase for sample in told.layers} <= {"prefill", "decode"}


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Continuous batching that says whenever it runs what stands for a compiled function."""
    from transformers.generation.continuous_batching.model_runner import ModelRunner

    ran: list[str] = []
    original = ModelRunner._get_forward_fn

    def choose(self: Any, *args: Any, **kwargs: Any) -> tuple[Any, bool]:
        function, graph = original(self, *args, **kwargs)

        def compiled(*inputs: Any) -> Any:
            ran.append("compiled")
            return function(*inputs)

        return compiled, graph

    monkeypatch.setattr(ModelRunner, "_get_forward_fn", choose)
    return ran


def test_a_sampled_batch_leaves_compiled_code(chosen: list[str], told: Told) -> None:
    """A step whose layers are sampled takes the uncompiled function, every other one what transformers chose."""
    make_model().generate_batch([list(range(10))], generation(12), settings())
    told.read()
    assert chosen
    assert told.layers
    assert len(chosen) + len(told.layers) == len(told.times)


def test_nothing_is_left_on_the_model(told: Told) -> None:
    """After undo the model has neither hooks nor probes, and its modules the methods that they had."""
    model = make_model()
    model.generate(PROMPT, max_new_tokens=NEW)
    assert model._forward_pre_hooks
    transformers_forward.restore()
    probing.forget_probes()
    assert not model._forward_pre_hooks
    assert not model._forward_hooks
    assert all("forward" not in vars(module) for module in model.modules())
    assert not any(name.startswith("tailspan") for name in vars(model))
    told.read()
    assert told.layers


def test_copies_of_a_model_are_their_own(told: Told) -> None:
    """A deep copy and a pickled one compute with their own weights and have no probe."""
    model = make_model()
    expected = model.generate(PROMPT, max_new_tokens=4, do_sample=False)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            for weight in other.parameters():
                weight.zero_()
        assert not torch.equal(other(PROMPT).logits, model(PROMPT).logits)
        assert not vars(other)["tailspan_probes"].by_engine
    assert torch.equal(model.generate(PROMPT, max_new_tokens=4, do_sample=False), expected)
    told.read()
    assert len(told.times) == 8


def test_a_compiled_model_has_no_break_by_the_hooks(told: Told) -> None:
    """`torch.compile` takes a model with hooks in one graph."""
    model = make_model()
    model.generate(PROMPT, max_new_tokens=2)
    compiled = torch.compile(lambda ids: model(ids, use_cache=False).logits, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(PROMPT), model(PROMPT).logits, atol=1e-5)
    told.read()
    assert len(told.times) == 2


def test_a_model_that_raises_leaves_its_step_out(told: Told) -> None:
    """The step that failed has no device time, the next call's have theirs again."""
    model = make_model()
    model.generate(PROMPT, max_new_tokens=2)
    with pytest.raises(IndexError):
        model.generate(torch.full((1, 3), 100_000), max_new_tokens=2)
    model.generate(PROMPT, max_new_tokens=2)
    told.read()
    assert len(told.times) == 4
    assert told.times[2].idle_ns is None


def test_two_threads_of_one_model(told: Told) -> None:
    """Calls at once are two engines: all steps are timed, layers only by one of them at a time."""
    model = make_model()
    threads = [threading.Thread(target=model.generate, args=(PROMPT,), kwargs={"max_new_tokens": NEW}) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told.read()
    assert len(told.times) == 2 * NEW
    assert len({time.engine for time in told.times}) in (1, 2)
    assert all("forward" not in vars(module) for module in model.modules())


def test_off_by_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TAILSPAN_DEVICE_TIMING=0 leaves the model as it is, TAILSPAN_LAYER_BUDGET=0 its layers."""
    for name, value, count in (("TAILSPAN_DEVICE_TIMING", "0", 0), ("TAILSPAN_LAYER_BUDGET", "0", 4)):
        directory = tmp_path / name
        directory.mkdir(mode=0o700)
        with monkeypatch.context() as patch:
            patch.setenv(WORKER_DIR, str(directory))
            patch.setenv(name, value)
            process.start(Settings.from_environment())
            patcher = engine.patcher()
            patcher.apply()
            model = make_model()
            model.generate(PROMPT, max_new_tokens=4)
            told = Told(directory)
            told.read()
            patcher.undo()
            process.close()
        assert len(told.times) == count
        assert not told.layers
        assert not model._forward_pre_hooks


def test_a_hand_written_engine_gives_its_module(told: Told) -> None:
    """`tailspan.Engine(module=...)` times its steps and layers; a step that raises is left out."""
    model = make_model()
    mine = tailspan.Engine("mine", "tiny", module=model)
    with tailspan.request("generate") as request:
        for number in range(NEW):
            with tailspan.step(mine, [request], prefill_tokens=0 if number else 10), torch.no_grad():
                model(PROMPT)
        with pytest.raises(ValueError, match="theirs"), tailspan.step(mine, [request]):
            raise ValueError("theirs")
    told.read()
    assert [time.number for time in told.times] == list(range(1, NEW + 1))
    assert told.layers


def test_requests_are_recorded_as_before(recorded: Recorded) -> None:
    """With the usual budget the steps of a call are what they are without device times."""
    make_model().generate(PROMPT, max_new_tokens=NEW)
    request = recorded.one()
    assert request.stage_names == ["prefill", "decode", "respond"]
    assert len(recorded.steps) == NEW
