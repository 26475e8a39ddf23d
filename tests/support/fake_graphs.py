"""CUDA graphs on the fake device: what is launched during a capture is run by each replay, in order.

A graph holds kernels, events, and computations (`compute`) that stand for what kernels do to memory. Of graphs that
share a pool, what one has computed is garbage once another runs. A plain event is captured silently and can never be
read: only an external one is recorded by replays, and it may not be recorded again before the device has passed it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.fake_device import FakeDevice, FakeEvent, FakeStream

Work = Callable[[], Any]


@dataclass
class FakePool:
    """A memory pool: what overwrites the memory of its graphs."""

    spoils: list[Work] = field(default_factory=list)


class ExternalEvent(FakeEvent):
    """`torch.cuda.Event(external=True)`."""

    __slots__ = ()
    device: GraphDevice

    def record(self, stream: FakeStream | None = None) -> None:
        """Become part of the graph that is captured, else be recorded as any event."""
        if self.device.capture_nodes is None:
            super().record(stream)
        else:
            self.device.capture_nodes.append(self)


class FakeGraph:
    """`torch.cuda.CUDAGraph`."""

    def __init__(self, device: GraphDevice) -> None:
        self.device = device
        self.nodes: list[ExternalEvent | int | Work] = []
        self.memory = FakePool()
        self.replays = 0
        self.fails = False
        """Whether it cannot be launched."""

    def pool(self) -> FakePool:
        """Return its memory pool."""
        return self.memory

    @property
    def events(self) -> int:
        """Number of its events."""
        return sum(isinstance(node, ExternalEvent) for node in self.nodes)

    @property
    def kernels_ns(self) -> int:
        """Time of its kernels."""
        return sum(node for node in self.nodes if isinstance(node, int))

    def replay(self) -> None:
        """Launch everything in it on the current stream."""
        device, stream = self.device, self.device.current_stream()
        device.check()
        if self.fails:
            raise RuntimeError("CUDA error: out of memory")
        self.replays += 1
        stream.free_ns = max(device.now() + device.latency(), stream.free_ns)
        for spoil in self.memory.spoils:
            spoil()
        for node in self.nodes:
            if isinstance(node, ExternalEvent):
                node.follow(stream, stream.free_ns)
                stream.free_ns += device.event_ns
            elif isinstance(node, int):
                stream.free_ns += node / device.speed
            else:
                node()


class GraphDevice(FakeDevice):
    """A device that captures and replays graphs; looks like `torch.cuda`."""

    def __init__(self) -> None:
        super().__init__()
        self.capture_nodes: list[ExternalEvent | int | Work] | None = None
        self.graphs: list[FakeGraph] = []
        """In the order in which they were made."""
        self.event_ns = 2_000
        """What an event in a graph takes."""
        self.speed = 1.0
        """Of the kernels in graphs."""
        self._pool = FakePool()

    def launch(self, kernel_ns: int) -> None:
        """Launch a kernel, or capture it."""
        if self.capture_nodes is None:
            super().launch(kernel_ns)
        else:
            self.capture_nodes.append(kernel_ns)

    def compute(self, work: Work, spoil: Work) -> None:
        """Capture work on memory, and what makes its result garbage."""
        if self.capture_nodes is not None:
            self.capture_nodes.append(work)
            self._pool.spoils.append(spoil)

    def catch_up(self) -> None:
        """Let the device reach the end of its stream, and the host see it."""
        self.advance(max(0, int(self.current_stream().free_ns) - self.host_ns) + self.visible_ns + 1)

    def CUDAGraph(self) -> FakeGraph:  # noqa: N802 (as torch.cuda spells it)
        """Return an empty graph."""
        self.graphs.append(FakeGraph(self))
        return self.graphs[-1]

    @contextlib.contextmanager
    def graph(self, graph: FakeGraph, pool: FakePool | None = None) -> Iterator[None]:
        """Capture what is launched, on a stream of its own; after an error that one stays current, as with torch."""
        assert self.capture_nodes is None, "a graph was captured inside another one"
        before, self._current = self._current, self.Stream()
        graph.memory = self._pool = pool or FakePool()
        self.capture_nodes = graph.nodes
        try:
            with self.capture():
                yield
            self._current = before
        finally:
            self.capture_nodes = None

    def Event(self, *, enable_timing: bool = False, external: bool = False) -> FakeEvent:  # noqa: N802
        """Return a new event."""
        return (ExternalEvent if external else FakeEvent)(self, timed=enable_timing)
