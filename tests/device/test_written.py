"""What a probe writes is what the agent reads; and the fake device is called as the real one is."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tailspan.agent.decode import RingDecoder
from tailspan.agent.device import DeviceTime, Layers
from tailspan.device import timer_for
from tailspan.device.cuda import CudaTimer
from tailspan.device.steps import StepProbe
from tailspan.recorder import Engine, now_ns, process
from tailspan.recorder.reader import RingReader
from tailspan.settings import WORKER_DIR, Settings
from tests.device.bench import MS, EveryOther
from tests.support.fake_device import FakeDevice


@pytest.fixture
def worker_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A started recorder; the folder of its rings."""
    directory = tmp_path / "worker"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv(WORKER_DIR, str(directory))
    process.start(Settings.from_environment())
    yield directory
    process.close()


def device_events(worker_dir: Path) -> list[object]:
    """Return what the agent decodes of the only ring."""
    [ring] = worker_dir.glob("*.ring")
    reader = RingReader(ring)
    slots = reader.read()
    while reader.pending:
        slots += reader.read()
    events = RingDecoder().decode(slots)
    return [event for event in events if isinstance(event, (DeviceTime, Layers))]


def test_torch_on_the_cpu_is_timed(worker_dir: Path) -> None:
    """A step of real torch is as long as the host says, begins when it began, and has the gap before it."""
    engine = Engine("test", "matmul")
    timer = timer_for(torch.device("cpu"))
    assert timer is not None
    probe = StepProbe(timer)
    walls = []
    for number in (1, 2):
        before_ns = now_ns()
        probe.begin("decode")
        torch.mm(torch.ones(256, 256), torch.ones(256, 256))
        probe.launched()
        probe.end(engine.name, number)
        walls.append((before_ns, now_ns()))
    first, second = device_events(worker_dir)
    assert isinstance(first, DeviceTime)
    assert isinstance(second, DeviceTime)
    assert [(step.engine, step.number, step.device) for step in (first, second)] == [
        (engine.id, 1, "cpu"), (engine.id, 2, "cpu"),
    ]  # fmt: skip
    for step, (before_ns, after_ns) in zip((first, second), walls, strict=True):
        assert step.begin_ns is not None
        assert before_ns <= step.begin_ns < step.begin_ns + step.busy_ns <= after_ns
        assert step.uncertainty_ns == 0
        assert step.launch_ns is None
    assert first.idle_ns is None
    assert first.begin_ns is not None
    assert second.begin_ns is not None
    assert second.idle_ns == second.begin_ns - first.begin_ns - first.busy_ns


def test_a_sampled_step_of_a_gpu_is_read_as_written(worker_dir: Path) -> None:
    """Parts and their times arrive in front of the step's busy, idle and launch time."""
    device, sampler = FakeDevice(), EveryOther()
    engine = Engine("test", "fake")
    probe = StepProbe(CudaTimer(device, 0, "rocm", now=device.now), sampler, device.now)
    for number in (1, 2):
        probe.begin("decode")
        for _ in range(2):
            device.launch(1 * MS)
            sampler.mark()
        device.advance(MS // 2)
        probe.launched()
        device.launch(2 * MS)
        probe.end(engine.name, number)
        device.advance(9 * MS)
    probe.poll()
    layers, first, second = device_events(worker_dir)
    assert isinstance(layers, Layers)
    assert isinstance(first, DeviceTime)
    assert isinstance(second, DeviceTime)
    assert layers.parts == ("embedding", "0/mlp", "sampler")
    assert (layers.number, first.number, second.number) == (1, 1, 2)
    assert first.busy_ns == pytest.approx(4 * MS, abs=1000)
    assert second.idle_ns == pytest.approx(9 * MS + MS // 2 - 4 * MS, abs=1000)
    assert second.launch_ns == MS // 2
    assert second.device == "rocm"
    assert second.begin_ns is not None
    assert abs(second.begin_ns - (10**12 + 9 * MS + MS // 2 + 5_000)) <= second.uncertainty_ns


@pytest.mark.parametrize("name", ["current_stream", "is_current_stream_capturing", "synchronize", "Event"])
def test_the_fake_device_has_the_functions_of_torch(name: str) -> None:
    """What is called on the fake exists in `torch.cuda`, with the same arguments."""
    real = inspect.signature(getattr(torch.cuda, name) if name != "Event" else torch.cuda.Event.__new__).parameters
    fake = inspect.signature(getattr(FakeDevice(), name)).parameters
    assert {argument for argument in fake if argument != "_"} <= set(real)


@pytest.mark.parametrize("name", ["record", "query", "elapsed_time", "synchronize"])
def test_the_fake_event_has_the_methods_of_torch(name: str) -> None:
    """What is called on an event of the fake exists in `torch.cuda.Event`, with as many arguments."""
    real = inspect.signature(getattr(torch.cuda.Event, name)).parameters
    fake = inspect.signature(getattr(FakeDevice().Event(enable_timing=True), name)).parameters
    assert len(real) == len(fake) + 1
