"""A device, a probe on it, and an engine whose steps and layers have planted times."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tailspan.device.cuda import CudaTimer
from tailspan.device.steps import StepProbe
from tailspan.device.timer import DeviceTimer, Mark
from tests.device.conftest import Recorded
from tests.support.fake_device import FakeDevice

MS = 10**6
TICKS = 1_000
"""By how many ns a difference of two stamps may be off."""


class Bench:
    """A device, a probe on it, and an engine whose steps have planted times."""

    def __init__(self, device: FakeDevice, sampler: Any = None, capacity: int = 4096) -> None:
        self.device = device
        self.timer = CudaTimer(device, 0, "cuda", capacity, device.now)
        self.probe = StepProbe(self.timer, sampler, device.now)

    def launch(self, number: int, kernel_ns: int = 8 * MS, launch_ns: int = 1 * MS, phase: str = "decode") -> None:
        """Launch a step; the host is `launch_ns` busy with it, the device `kernel_ns` and its sampling none."""
        self.probe.begin(phase)
        self.device.launch(kernel_ns)
        self.device.advance(launch_ns)
        self.probe.launched()
        self.probe.end("engine", number)

    def step(self, number: int, kernel_ns: int = 8 * MS, gap_ns: int = 2 * MS, **more: Any) -> None:
        """Launch a step, wait until the device has passed it, and let it idle."""
        self.launch(number, kernel_ns, **more)
        self.pass_all()
        self.device.advance(gap_ns)

    def pass_all(self) -> None:
        """Let the device reach the end of its stream, and poll."""
        free_ns = self.device.current_stream().free_ns
        self.device.advance(max(0, int(free_ns) - self.device.host_ns) + self.device.visible_ns)
        self.probe.poll()


def numbers(recorded: Recorded) -> list[int]:
    """Return the numbers of the recorded steps."""
    return [step[1] for step in recorded.steps]


@dataclass
class Parts:
    """A sample of three parts."""

    marks: list[Mark] = field(default_factory=list)
    parts_text: str = "embedding|0-0:mlp|sampler"
    steps: int = 7
    cost_ns: int = 1234
    graph: bool = True
    prefill: bool = False

    def times(self, timer: DeviceTimer, begin: Mark, end: Mark) -> list[float]:
        points = [begin, *self.marks, end]
        return [float(timer.elapsed_ns(*pair)) for pair in pairwise(points)]


class EveryOther:
    """Samples every other step."""

    def __init__(self) -> None:
        self.timer: Any = None
        self.sample: Parts | None = None
        self.began: list[str] = []
        self.walls: list[tuple[str, int]] = []
        self.ended = 0
        self.is_open = False

    def begin(self, timer: DeviceTimer, phase: str) -> bool:
        self.timer = timer
        self.began.append(phase)
        self.sample = Parts() if len(self.began) % 2 else None
        self.is_open = self.sample is not None
        return self.is_open

    def mark(self) -> None:
        if self.is_open and self.sample is not None:
            self.sample.marks.append(self.timer.record())

    def end(self) -> Parts | None:
        self.ended += 1
        self.is_open = False
        return self.sample

    def stepped(self, phase: str, wall_ns: int) -> None:
        self.walls.append((phase, wall_ns))


def sampled_step(bench: Bench, sampler: EveryOther, number: int, phase: str = "decode") -> bool:
    """Launch a step of three parts; return whether the probe said that it is sampled."""
    is_sampled = bench.probe.begin(phase)
    for part_ns in (1 * MS, 2 * MS):
        bench.device.launch(part_ns)
        sampler.mark()
    bench.device.launch(3 * MS)
    bench.device.advance(MS)
    bench.probe.launched()
    bench.probe.end("engine", number)
    return is_sampled
