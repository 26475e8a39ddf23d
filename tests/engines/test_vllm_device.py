"""The device's side of a vLLM runner, without vLLM: steps that fail leave nothing behind."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tailspan.engines import vllm_device
from tailspan.recorder import process
from tailspan.settings import WORKER_DIR, Settings
from tests.engines.conftest import make_model
from tests.engines.test_device_time import Told

OUTPUT = SimpleNamespace(total_num_scheduled_tokens=2, num_scheduled_tokens={"a": 1, "b": 1})


class Runner:
    """What the hooks ask a model runner for."""

    def __init__(self) -> None:
        self.asked = 0
        self.device = torch.device("cpu")
        self.vllm_config = SimpleNamespace(compilation_config=SimpleNamespace(mode=0, cudagraph_mode=None))
        self.parallel_config = SimpleNamespace(world_size=1)

    def get_model(self) -> Any:
        """Return the model; counts how often."""
        self.asked += 1
        return make_model()

    def _model_forward(self) -> None:
        """Have the first runner's function."""


def step(runner: Runner, number: int, *, samples: bool = True) -> None:
    """Run one step as the hooks do; without sampling it raised there."""
    vllm_device.planned(runner, ("engine", number), OUTPUT)
    vllm_device.forward_begins(runner)
    vllm_device.forward_returned(runner)
    if samples:
        vllm_device.sampled(runner)
        vllm_device.ended(runner)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A started recorder."""
    directory = tmp_path / "worker"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv(WORKER_DIR, str(directory))
    process.start(Settings.from_environment())
    yield Told(directory)
    process.close()


def test_a_step_that_raised_in_sampling_is_left_out(told: Told) -> None:
    """The steps after it are timed from their own begin."""
    runner = Runner()
    for number, samples in ((1, True), (2, False), (3, True)):
        step(runner, number, samples=samples)
    told.read()
    assert [time.number for time in told.times] == [1, 3]


def test_a_runner_that_cannot_be_timed_is_asked_once(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails while its probe is made is not tried again at each step."""
    runner = Runner()
    monkeypatch.setattr(runner, "device", "no such device")
    with pytest.raises(RuntimeError):
        step(runner, 1)
    step(runner, 2)
    assert runner.asked == 1
    told.read()
    assert not told.times
