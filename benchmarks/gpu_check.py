"""What only a GPU can show: `make gpu-check`, or `python -m benchmarks.gpu_check`. Needs torch and transformers.

In: nothing but a CUDA device (`--device cpu` runs what a CPU can show, to try the check itself). The model is a Llama
with random weights, so nothing is fetched. Out: a table, then one line of JSON for each row, as of `make bench`.
Exit code: 0 if every goal holds, 1 if one does not, 3 without a GPU. Takes at most four minutes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from rich.console import Console

from benchmarks.__main__ import table
from benchmarks.layer_shares import KINDS, profiled_shares, sampled_shares
from benchmarks.pairs import change_of_median
from benchmarks.result import Result
from tailspan.agent.decode import Event
from tailspan.agent.device import DeviceTime, Layers
from tailspan.agent.worker import WorkerRings
from tailspan.device import timer_for
from tailspan.device.steps import StepProbe
from tailspan.engines import transformers as engine
from tailspan.layers.governor import Governor
from tailspan.layers.graphs import GraphLayers
from tailspan.layers.plan import Plan, plan_of
from tailspan.layers.sampler import LayerSampler
from tailspan.recorder import process
from tailspan.settings import WORKER_DIR, Settings

SLEEP_NS = 5_000_000
"""Planted idle time."""
LONG_KERNEL_CYCLES = 400_000_000
"""Some 0.2 s of a GPU's clock."""
STEPS = 60
ROUNDS = 12
NEW_TOKENS = 64


def main(arguments: list[str] | None = None) -> int:
    """Run all checks; return the exit code."""
    import torch

    parser = argparse.ArgumentParser(prog="make gpu-check", description="measure what only a GPU can show")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    device = parser.parse_args(arguments).device
    if device == "cuda" and not torch.cuda.is_available():
        print("make gpu-check: there is no CUDA GPU here, so nothing was measured", file=sys.stderr)
        return 3
    console = Console()
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    console.print(f"gpu-check on {name}, torch {torch.__version__}")
    begin_s = time.monotonic()
    with recorder() as told:
        bench = Bench(device, told)
        checks = [bench.timer_cost, bench.idle_gap, bench.layers_eager, bench.shares, bench.overhead]
        if device == "cuda":
            checks += [bench.no_synchronisation, bench.layers_in_a_graph]
        results = [row for check in checks for row in check()]
    console.print(table("gpu-check", results))
    console.print(f"{time.monotonic() - begin_s:.0f} s")
    for result in results:
        print(result.to_json())
    return 0 if all(result.holds for result in results) else 1


@contextmanager
def recorder() -> Iterator[Callable[[], list[Event]]]:
    """Record into a folder of its own; give a function that returns what was recorded since its last call."""
    with tempfile.TemporaryDirectory(prefix="tailspan-gpu-check-") as folder:
        os.environ[WORKER_DIR] = folder
        rings = WorkerRings(Path(folder))
        process.start(Settings.from_environment())

        def told() -> list[Event]:
            rings.discover()
            return [event for _ in range(3) for _, events in rings.read() for event in events]

        try:
            yield told
        finally:
            process.close()
            del os.environ[WORKER_DIR]


class Bench:
    """The checks; each returns its rows."""

    def __init__(self, device: str, told: Callable[[], list[Event]]) -> None:
        import torch

        torch.manual_seed(0)
        self.torch = torch
        self.device = device
        self.told = told
        self.model = make_model(device)
        # The device is busy with a prefill long after the host has launched it; decoding waits for the host.
        self.prefill = torch.randint(10, 1000, (8, 512) if device == "cuda" else (1, 64), device=device)
        self.decode = self.prefill[:, :1]
        plan = plan_of(self.model)
        if not isinstance(plan, Plan):
            raise RuntimeError(plan)
        self.plan = plan
        timer = timer_for(device)
        if timer is None:
            raise RuntimeError(f"there is no timer for {device}")
        self.timer = timer

    def timer_cost(self) -> list[Result]:
        """Host time of a pair of marks."""
        timer, count = self.timer, 1000
        costs = []
        for _ in range(5):
            begin_ns = time.perf_counter_ns()
            pairs = [(timer.record(), timer.record()) for _ in range(count)]
            costs.append((time.perf_counter_ns() - begin_ns) / count / 1e3)
            self.wait()
            timer.release(mark for pair in pairs for mark in pair)
        return [Result("gpu.pair", statistics.median(costs), "us", 10.0)]

    def idle_gap(self) -> list[Result]:
        """A sleep of the host between two steps is idle time of the device."""
        probe = StepProbe(self.timer)
        for number in range(1, STEPS + 1):
            self.step(probe, number)
            self.wait()
            time.sleep(SLEEP_NS / 1e9)
        gaps = [event.idle_ns for event in self.times(probe) if event.idle_ns is not None]
        off = statistics.median(abs(gap - SLEEP_NS) for gap in gaps) / SLEEP_NS * 100
        return [Result("gpu.idle_gap.off", off, "%", 10.0)]

    def layers_eager(self) -> list[Result]:
        """The parts of sampled steps: against a pair of marks around the same step, and against steps not sampled."""
        rows = []
        for name, tokens in (("decode", self.decode), ("prefill", self.prefill)):
            sampler = LayerSampler(self.plan, Governor(0.5, interval_ns=0, first_cost_ns=1))
            probe = StepProbe(self.timer, sampler)
            for number in range(1, 4 * STEPS + 1):
                self.step(probe, number, tokens)
            events = self.events(probe)
            sums = {event.number: sum(event.ns) for event in events if isinstance(event, Layers)}
            busy = {event.number: event.busy_ns for event in events if isinstance(event, DeviceTime)}
            same = statistics.median(sums[number] / busy[number] for number in sums)
            others = statistics.median(sums.values()) / statistics.median(busy[n] for n in busy if n not in sums)
            rows.append(Result(f"layers.{name}.closure", abs(same - 1) * 100, "%", 1.3,
                               peer="against steps not sampled", peer_value=(others - 1) * 100))  # fmt: skip
        return rows

    def shares(self) -> list[Result]:
        """Attention and MLP against torch.profiler."""
        ours = sampled_shares(self.plan, self.timer, self.forward, self.wait, STEPS)
        theirs = profiled_shares(self.model, self.forward, self.wait, self.device, STEPS)
        return [
            Result(f"layers.{kind}.off", abs(ours[kind] - theirs[kind]) * 100, "points", 3.0, peer="torch.profiler",
                   peer_value=theirs[kind] * 100)
            for kind in KINDS
        ]  # fmt: skip

    def overhead(self) -> list[Result]:
        """`generate()` with everything on against nothing recorded, in turn."""
        patcher = engine.patcher()
        patcher.apply()
        prompt = self.torch.randint(10, 1000, (1, 32), device=self.device)
        walls: dict[bool, list[float]] = {False: [], True: []}
        started = process._recorder
        try:
            for number in range(2 * (ROUNDS + 1)):
                is_traced = number % 2 == (number // 2) % 2
                process._recorder = started if is_traced else None
                begin_s = time.perf_counter()
                self.model.generate(prompt, max_new_tokens=NEW_TOKENS, do_sample=False)
                self.wait()
                if number > 1:
                    walls[is_traced].append(time.perf_counter() - begin_s)
        finally:
            process._recorder = started
            patcher.undo()
        change = change_of_median(walls[False], walls[True])
        name = f"estimate in {change.interval}, {len(walls[True])} pairs"
        return [Result("gpu.overhead.wall", change.high, "%", 1.0, peer=name, peer_value=change.percent)]

    def no_synchronisation(self) -> list[Result]:
        """Everything that a probe does returns while the device is held up by a long kernel."""
        probe = StepProbe(self.timer, LayerSampler(self.plan, Governor(0.5, interval_ns=0, first_cost_ns=1)))
        for number in range(1, 9):
            self.step(probe, number)
        self.wait()
        start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in "ab")
        start.record()
        self.torch.cuda._sleep(LONG_KERNEL_CYCLES)
        stop.record()
        begin_ns = time.perf_counter_ns()
        self.step(probe, 9)
        probe.poll()
        launched_ms = (time.perf_counter_ns() - begin_ns) / 1e6
        self.wait()
        held_ms = start.elapsed_time(stop)
        self.times(probe)
        return [
            Result("gpu.behind_long_kernel", launched_ms, "ms", held_ms / 2, peer="kernel", peer_value=held_ms),
        ]

    def layers_in_a_graph(self) -> list[Result]:
        """The parts inside a captured graph against the same graph without events."""
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.forward(self.decode)
        torch.cuda.current_stream().wait_stream(side)
        plain, timed = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(plain):
            self.forward(self.decode)
        layers = GraphLayers(self.plan, torch.cuda)
        with layers.capture(torch.cuda.graph(timed, pool=plain.pool())):
            self.forward(self.decode)
        sums, wholes = [], []
        for _ in range(STEPS):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in "ab")
            start.record()
            plain.replay()
            stop.record()
            replay = layers.replay(timed)
            self.wait()
            times = layers.read(replay)
            if times is None:
                raise RuntimeError("the times of a replay that has completed could not be read")
            sums.append(sum(times))
            wholes.append(start.elapsed_time(stop) * 1e6)
        closure = abs(statistics.median(sums) / statistics.median(wholes) - 1) * 100
        return [Result("layers.closure.graph", closure, "%", 1.3)]

    def forward(self, tokens: Any = None) -> Any:
        """Run the model once, on the tokens of a prefill unless others are given."""
        with self.torch.inference_mode():
            return self.model(self.prefill if tokens is None else tokens, use_cache=False)

    def step(self, probe: StepProbe, number: int, tokens: Any = None) -> None:
        """Run one step, on the tokens of a decode unless others are given."""
        probe.begin("decode")
        self.forward(self.decode if tokens is None else tokens)
        probe.launched()
        probe.end("gpu-check", number)

    def wait(self) -> None:
        """Wait for the device; the check may, the hooks never do."""
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def events(self, probe: StepProbe) -> list[Event]:
        """Return what a probe recorded, after the device has passed everything."""
        self.wait()
        probe.poll()
        return self.told()

    def times(self, probe: StepProbe) -> list[DeviceTime]:
        """Return the device times among them."""
        return [event for event in self.events(probe) if isinstance(event, DeviceTime)]


def make_model(device: str) -> Any:
    """Return a Llama with random weights: 16 layers of 1,024, smaller on a CPU."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    size, layers = (1024, 16) if device == "cuda" else (256, 8)
    config = LlamaConfig(
        vocab_size=32_000, hidden_size=size, intermediate_size=4 * size, num_hidden_layers=layers,
        num_attention_heads=16, num_key_value_heads=8, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    return LlamaForCausalLM(config).to(device=device, dtype=dtype).eval()


if __name__ == "__main__":
    sys.exit(main())
