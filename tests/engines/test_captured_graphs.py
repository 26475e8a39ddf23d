"""`tailspan.Engine.capture`: a hand-written engine replays its decode step, on a fake of CUDA graphs and on a CPU."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tailspan
from tailspan.device.cuda import CudaTimer
from tailspan.engines import probing
from tailspan.handmade import graphs
from tailspan.layers import governor
from tailspan.layers import graphs as layer_graphs
from tailspan.layers.graphs import GraphLayers
from tailspan.layers.plan import Plan, plan_of
from tailspan.layers.sampler import LayerSampler
from tailspan.recorder import process
from tailspan.settings import WORKER_DIR, Settings
from tests.engines.conftest import make_model
from tests.engines.test_device_time import Told
from tests.layers.test_graphs import PART_NS, launches
from tests.support.fake_graphs import GraphDevice

LAYERS = 2
SAMPLING_NS = 250_000
KERNELS_NS = (
    PART_NS["embedding"] + PART_NS["lm_head"] + PART_NS["norm"]
    + LAYERS * (2 * PART_NS["norm"] + PART_NS["attention"] + PART_NS["mlp"])
)  # fmt: skip


class Worker:
    """A hand-written engine: its decode step works on static tokens, and is replayed."""

    def __init__(self, device: GraphDevice | None) -> None:
        self.device = device
        self.model = make_model(LAYERS)
        self.reference = copy.deepcopy(self.model)
        self.tokens = torch.zeros(1, 4, dtype=torch.long)
        self.engine = tailspan.Engine("mine", "tiny", module=self.model)
        self.samples = False
        self.calls = 0
        if device is not None:
            plan = plan_of(self.model)
            assert isinstance(plan, Plan)
            launches(plan, device)

    @torch.no_grad()
    def expected(self) -> Any:
        """Return the logits of the tokens."""
        return self.reference(self.tokens, use_cache=False).logits[0, -1]

    @torch.no_grad()
    def decode(self) -> Any:
        """Compute the logits of the tokens; captured, whenever the graph runs."""
        self.calls += 1
        logits = self.model(self.tokens, use_cache=False).logits[0, -1].clone()
        if self.device is not None:
            self.device.compute(lambda: logits.copy_(self.expected()), lambda: logits.fill_(torch.nan))
        return logits

    def step(self, graph: tailspan.CapturedGraph[Any], number: int, *, sampled: bool = False, wait: bool = True) -> Any:
        """Run a step that replays the graph; check its output and return it."""
        self.samples = sampled
        self.tokens.fill_(number)
        with tailspan.step(self.engine, decode_tokens=1):
            logits = graph.replay()
            if self.device is not None:
                self.device.launch(SAMPLING_NS)
        assert torch.equal(logits, self.expected())
        if wait:
            self.catch_up()
        return logits

    def catch_up(self) -> None:
        """Let the device pass everything, and the probe see it."""
        if self.device is not None:
            self.device.catch_up()
        probe = self.engine.probe()
        if probe is not None:
            probe.poll()

    @property
    def sampler(self) -> LayerSampler:
        """What samples its layers."""
        probe = self.engine.probe()
        assert probe is not None
        assert isinstance(probe.sampler, LayerSampler)
        return probe.sampler


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """A started recorder."""
    directory = tmp_path / "worker"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv(WORKER_DIR, str(directory))
    process.start(Settings.from_environment())
    monkeypatch.setattr(layer_graphs, "_logged", set())
    yield Told(directory)
    probing.forget_probes()
    process.close()


def worker_on(device: GraphDevice | None, monkeypatch: pytest.MonkeyPatch) -> Worker:
    """Return a worker that samples the steps that it wants."""
    worker = Worker(device)
    monkeypatch.setattr(governor.Governor, "wants", lambda *_: worker.samples)
    return worker


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """A worker on a device with graphs, on which nobody may wait."""
    device = GraphDevice()
    monkeypatch.setattr("tailspan.device.timer_for", lambda _: CudaTimer(device, 0, "cuda", now=device.now))
    monkeypatch.setattr(graphs, "cuda_of", lambda _: device)
    yield worker_on(device, monkeypatch)
    assert not device.synchronized


def device_of(worker: Worker) -> GraphDevice:
    """Return the worker's device."""
    assert worker.device is not None
    return worker.device


def test_sampled_steps_replay_the_twin(worker: Worker, told: Told) -> None:
    """Every step is timed and right; those that are sampled have the parts inside the graph, of mode `graph`."""
    graph = worker.engine.capture(worker.decode)
    assert graph.times_layers
    outputs = [worker.step(graph, number, sampled=number % 3 == 0) for number in range(1, 10)]
    told.read()
    plain, twin = device_of(worker).graphs
    assert (plain.replays, twin.replays) == (6, 3)
    assert len({id(output) for output in outputs}) == 2
    assert [time.number for time in told.times] == list(range(1, 10))
    assert [sample.number for sample in told.layers] == [3, 6, 9]
    busy_ns = {time.number: time.busy_ns for time in told.times}
    for sample in told.layers:
        assert (sample.mode, sample.phase, sample.steps) == ("graph", "decode", 3)
        ns = dict(zip(sample.parts, sample.ns, strict=True))
        for layer in range(LAYERS):
            assert ns[f"{layer}/attention"] == pytest.approx(PART_NS["attention"], abs=1_500)
            assert ns[f"{layer}/mlp"] == pytest.approx(PART_NS["mlp"], abs=1_500)
        assert ns["lm_head"] == pytest.approx(PART_NS["lm_head"], abs=1_500)
        assert ns["sampler"] == pytest.approx(SAMPLING_NS, abs=3_000)
        assert ns["other"] < 20_000
        events_ns = twin.events * device_of(worker).event_ns
        assert sum(sample.ns) == pytest.approx(busy_ns[sample.number] - events_ns, abs=30_000)
        assert busy_ns[1] == pytest.approx(KERNELS_NS + SAMPLING_NS, abs=10_000)


def test_both_graphs_share_the_pool(worker: Worker, told: Told) -> None:
    """The twin takes the plain graph's memory, and graphs of other batch sizes take it too; each has its own layers."""
    first = worker.engine.capture(worker.decode)
    second = worker.engine.capture(worker.decode, pool=first.pool)
    assert second.pool is first.pool
    assert len({id(graph.memory) for graph in device_of(worker).graphs}) == 1
    for number, graph in enumerate((first, second, first, second), start=1):
        worker.step(graph, number, sampled=True)
    told.read()
    assert len(told.layers) == 4
    assert [graph.replays for graph in device_of(worker).graphs] == [0, 2, 0, 2]


def test_a_twin_that_was_not_read_is_left_alone(worker: Worker, told: Told) -> None:
    """While the device is behind, the plain graph runs and only this sample is lost: its steps are never mixed."""
    graph = worker.engine.capture(worker.decode)
    worker.step(graph, 1, sampled=True, wait=False)
    worker.step(graph, 2, sampled=True, wait=False)
    assert worker.sampler.unread == 1
    worker.catch_up()
    worker.step(graph, 3, sampled=True)
    told.read()
    assert [time.number for time in told.times] == [1, 2, 3]
    assert [sample.number for sample in told.layers] == [1, 3]
    assert [sample.steps for sample in told.layers] == [1, 2]
    assert [graph.replays for graph in device_of(worker).graphs] == [1, 2]


def test_a_step_that_raised_frees_its_twin(worker: Worker, told: Told) -> None:
    """Its times are never read, and the next sampled step replays the twin all the same."""
    graph = worker.engine.capture(worker.decode)
    worker.samples = True
    step = tailspan.step(worker.engine)
    step.__enter__()
    graph.replay()
    step.__exit__(ValueError, ValueError("theirs"), None)
    worker.catch_up()
    worker.step(graph, 1, sampled=True)
    told.read()
    assert [sample.number for sample in told.layers] == [2]
    assert worker.sampler.unread == 0


def test_warm_up_is_on_a_side_stream(worker: Worker, told: Told) -> None:
    """The function is called on another stream, which waits for this one and is waited for; then for each graph."""
    device = device_of(worker)
    device.launch(SAMPLING_NS)
    before, seen = device.current_stream(), []
    launched_ns = before.free_ns

    def function() -> Any:
        seen.append((device.current_stream(), device.current_stream().free_ns, device.capturing))
        return worker.decode()

    worker.engine.capture(function, warm_up=2)
    assert [capturing for _, _, capturing in seen] == [False, False, True, True]
    assert all(stream is not before for stream, _, _ in seen)
    assert device.current_stream() is before
    assert seen[0][1] == launched_ns
    assert before.free_ns == seen[0][0].free_ns > launched_ns


@pytest.mark.parametrize("warm_up", [0, 3])
def test_an_error_of_the_function_is_the_users(worker: Worker, told: Told, warm_up: int) -> None:
    """It passes as it is, from the warm-up and from the capture."""
    error = ValueError("theirs")

    def function() -> None:
        raise error

    with pytest.raises(ValueError, match="theirs") as raised:
        worker.engine.capture(function, warm_up=warm_up)
    assert raised.value is error


def test_an_error_of_ours_leaves_the_plain_graph(
    worker: Worker, told: Told, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without its twin every step replays the plain graph, is timed, and has no layers; the stream is as before."""
    monkeypatch.delenv("TAILSPAN_STRICT")
    before = device_of(worker).current_stream()
    with monkeypatch.context() as broken:
        broken.setattr(GraphLayers, "_record", lambda _: 1 // 0)
        graph = worker.engine.capture(worker.decode)
    assert device_of(worker).current_stream() is before
    assert "ZeroDivisionError" in caplog.text
    assert not graph.times_layers
    for number in range(1, 5):
        worker.step(graph, number, sampled=number > 2)
    told.read()
    assert [time.number for time in told.times] == [1, 2, 3, 4]
    assert not told.layers
    assert device_of(worker).graphs[0].replays == 4


def test_a_graph_that_hides_layers_costs_the_sample(
    worker: Worker, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step with eager layers and a graph whose twin failed tells nothing, rather than half of the parts."""
    monkeypatch.delenv("TAILSPAN_STRICT")
    with monkeypatch.context() as broken:
        broken.setattr(GraphLayers, "_record", lambda _: 1 // 0)
        graph = worker.engine.capture(worker.decode)
    worker.samples = True
    with tailspan.step(worker.engine):
        worker.decode()
        graph.replay()
    worker.catch_up()
    told.read()
    assert len(told.times) == 1
    assert not told.layers


def test_an_error_of_ours_is_raised_in_tests(worker: Worker, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """With TAILSPAN_STRICT=1 it is shown."""
    monkeypatch.setattr(GraphLayers, "_record", lambda _: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        worker.engine.capture(worker.decode)


def test_a_graph_without_the_model_has_no_twin(worker: Worker, told: Told, caplog: pytest.LogCaptureFixture) -> None:
    """A captured sampler hides no layers: what is eager beside it is sampled as usual."""
    device = device_of(worker)
    with caplog.at_level(logging.INFO):
        graph = worker.engine.capture(lambda: device.launch(SAMPLING_NS))
    assert not graph.times_layers
    assert "no part of the model ran" in caplog.text
    worker.samples = True
    with tailspan.step(worker.engine):
        worker.decode()
        graph.replay()
    worker.catch_up()
    told.read()
    (sample,) = told.layers
    assert sample.mode == "eager"
    assert dict(zip(sample.parts, sample.ns, strict=True))["sampler"] > SAMPLING_NS - 1_500


@pytest.mark.parametrize(
    "setting", [("TAILSPAN_DEVICE_TIMING", "0"), ("TAILSPAN_LAYER_BUDGET", "0"), None], ids=["device", "budget", "off"]
)
def test_without_layers_there_is_one_graph(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: tuple[str, str] | None
) -> None:
    """Switched off, or not instrumented, nothing is captured but what the engine would capture itself."""
    if setting is not None:
        monkeypatch.setenv(WORKER_DIR, str(tmp_path))
        monkeypatch.setenv(*setting)
        process.start(Settings.from_environment())
    try:
        graph = worker.engine.capture(worker.decode)
        worker.step(graph, 1, sampled=True)
        assert [graph.replays for graph in device_of(worker).graphs] == [1]
        assert not graph.times_layers
        assert worker.calls == 4
    finally:
        probing.forget_probes()
        process.close()


def test_a_module_without_a_plan_has_one_graph(worker: Worker, told: Told) -> None:
    """Where there are no decoder layers, or no module was given, the plain graph is all there is."""
    for module in (torch.nn.Linear(2, 2), None):
        graph = tailspan.Engine("mine", module=module).capture(worker.decode)
        assert not graph.times_layers
        graph.replay()
    assert len(device_of(worker).graphs) == 2


def test_outside_of_steps_the_plain_graph_runs(worker: Worker, told: Told) -> None:
    """No step, or one of another engine: nothing is sampled."""
    graph = worker.engine.capture(worker.decode)
    other = tailspan.Engine("other", module=make_model())
    worker.samples = True
    graph.replay()
    with tailspan.step(other):
        assert torch.equal(graph.replay(), worker.expected())
    assert [graph.replays for graph in device_of(worker).graphs] == [2, 0]


def test_capture_inside_a_sampled_step(worker: Worker, told: Told) -> None:
    """A graph that is captured when it is first needed costs the sample of that step, and has its twin.

    The model stays that engine's until the step ends: another one does not sample it meanwhile.
    """
    other = tailspan.Engine("other", module=worker.model)
    worker.samples = True
    with tailspan.step(worker.engine):
        worker.decode()
        graph = worker.engine.capture(worker.decode)
        assert torch.equal(graph.replay(), worker.expected())
        with tailspan.step(other):
            worker.decode()
    worker.catch_up()
    other_probe = other.probe()
    assert other_probe is not None
    other_probe.poll()
    worker.step(graph, 1, sampled=True)
    told.read()
    mine, others = worker.engine.id, other.id
    assert sorted((time.engine, time.number) for time in told.times) == sorted([(mine, 1), (mine, 2), (others, 1)])
    assert [(sample.number, sample.mode) for sample in told.layers] == [(2, "graph")]


def test_capture_while_another_engine_samples_the_model(
    worker: Worker, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    """Two never tap one model at a time: the second captures the plain graph only, and the model stays as it was."""
    worker.samples = True
    other = tailspan.Engine("other", module=worker.model)
    forwards = [vars(module).get("forward") for module in worker.model.modules()]
    with tailspan.step(other):
        graph = worker.engine.capture(worker.decode)
    assert not graph.times_layers
    assert "another engine samples the model" in caplog.text
    assert [vars(module).get("forward") for module in worker.model.modules()] == forwards


def test_recording_that_ends_inside_a_step_leaves_nothing(worker: Worker, told: Told) -> None:
    """The step that is open when the recorder is closed gives its taps back, and later replays are plain."""
    graph = worker.engine.capture(worker.decode)
    forwards = [vars(module).get("forward") for module in worker.model.modules()]
    worker.samples = True
    with tailspan.step(worker.engine):
        process.close()
        probing.forget_probes()
    assert [vars(module).get("forward") for module in worker.model.modules()] == forwards
    graph.replay()
    assert [graph.replays for graph in device_of(worker).graphs] == [1, 0]


def test_on_a_cpu_the_function_is_called(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same engine without CUDA: nothing is captured, each replay calls the function, taps time its layers."""
    worker = worker_on(None, monkeypatch)
    graph = worker.engine.capture(worker.decode)
    assert worker.calls == 0
    assert (graph.pool, graph.times_layers) == (None, False)
    for number in range(1, 7):
        worker.step(graph, number, sampled=number % 2 == 0)
    told.read()
    assert worker.calls == 6
    assert [time.number for time in told.times] == list(range(1, 7))
    assert [(sample.number, sample.mode) for sample in told.layers] == [(2, "eager"), (4, "eager"), (6, "eager")]
    assert all(sum(sample.ns) > 0 for sample in told.layers)


def test_on_a_cpu_an_error_of_the_function_passes(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves the step as any error does."""
    worker = worker_on(None, monkeypatch)
    graph = worker.engine.capture(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError), tailspan.step(worker.engine):
        graph.replay()


def test_without_torch_the_function_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that has no torch runs the same code."""
    monkeypatch.setitem(sys.modules, "torch", None)
    assert tailspan.Engine("mine").capture(lambda: 7).replay() == 7


@pytest.mark.parametrize("available", [True, False])
def test_cuda_is_where_the_module_is(monkeypatch: pytest.MonkeyPatch, available: bool) -> None:
    """A module on the CPU is never captured; without weights to ask, the machine decides."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert graphs.cuda_of(torch.nn.Linear(1, 1)) is None
    assert graphs.cuda_of(None) is (torch.cuda if available else None)
    assert graphs.cuda_of(torch.nn.ReLU()) is graphs.cuda_of(None)
