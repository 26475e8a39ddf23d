"""Device times of steps find their steps, and steps wait for them a little, in order, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tailspan.agent.decode import EngineInfo, Event, Record, Step
from tailspan.agent.device import DeviceTime, Layers
from tailspan.agent.join import PASSES_AFTER_END, Finished, Joiner
from tailspan.agent.steps import DEVICE_PASSES, KEPT_STEPS, MAX_EARLY, PASSES_AFTER_STEP, PATIENCE, FinishedStep
from tailspan.recorder.layout import Kind

PASSES_TO_SETTLE = PASSES_AFTER_STEP + 1


def step(number: int, engine: str = "e", *, failed: bool = False) -> Step:
    """Return a step from 100 * number to 100 * number + 90."""
    begin = 100 * number
    return Step(engine, number, begin, begin + 90, 0, 1, 1, 0, 0, None, failed)


def device(number: int, engine: str = "e") -> DeviceTime:
    """Return the device time of a step."""
    return DeviceTime(engine, number, "cuda", 60 + number, 3, 100 * number + 10, 1, 5)


def layers(number: int, engine: str = "e") -> Layers:
    """Return the times of two parts in a step."""
    return Layers(engine, number, ("norm", "mlp"), (1.0, 2.0), 1, 0, "eager", "decode")


class Agent:
    """A joiner with its passes, and all that came out of it."""

    def __init__(self) -> None:
        self.joiner = Joiner()
        self.steps: list[FinishedStep] = []
        self.requests: list[Finished] = []

    def passes(self, count: int, *events: Event) -> list[int]:
        """Feed events and end a number of passes; return the numbers of the steps that came out."""
        before = len(self.steps)
        self.joiner.feed(list(events), 1)
        for _ in range(count):
            requests, steps = self.joiner.end_pass()
            self.requests += requests
            self.steps += steps
        return [finished.step.number for finished in self.steps[before:]]

    @property
    def device_of(self) -> dict[int, DeviceTime | None]:
        """Device time of the steps that came out, by number."""
        return {finished.step.number: finished.device for finished in self.steps}


@pytest.fixture
def agent() -> Agent:
    """An agent that has read nothing."""
    return Agent()


def timed(agent: Agent) -> Agent:
    """Let the engine give device time for its first step."""
    assert agent.passes(PASSES_TO_SETTLE, step(1), device(1)) == [1]
    return agent


def test_an_engine_without_device_times_waits_for_none(agent: Agent) -> None:
    """Its steps come out as soon as they are settled, whatever another engine does."""
    timed(agent)
    assert agent.passes(PASSES_TO_SETTLE, step(1, "other"), step(2)) == [1]
    assert agent.steps[-1].step.engine == "other"
    assert agent.steps[-1].device is None


@pytest.mark.parametrize("events", [(device(2), step(2)), (step(2), device(2))], ids=["before", "after"])
def test_device_time_may_come_before_its_step_or_after(agent: Agent, events: Sequence[Event]) -> None:
    """In the same pass or in earlier ones the step has it when it is settled."""
    timed(agent)
    agent.passes(1, events[0])
    assert agent.passes(PASSES_TO_SETTLE, events[1]) == [2]
    assert agent.device_of == {1: device(1), 2: device(2)}


def test_a_step_waits_and_those_after_it_too(agent: Agent) -> None:
    """Steps of one engine come out in order, those of another are not held up."""
    timed(agent)
    assert agent.passes(10, step(2), step(3), device(3), layers(2)) == []
    assert agent.passes(PASSES_TO_SETTLE, step(7, "other")) == [7]
    assert agent.passes(1, device(2)) == [2, 3]
    assert agent.device_of[2] == device(2)
    assert agent.device_of[3] == device(3)
    assert [finished.layers for finished in agent.steps if finished.step.engine == "e"] == [None, layers(2), None]


def test_the_wait_ends(agent: Agent) -> None:
    """A step goes without after `DEVICE_PASSES`, about a second; the next one still waits for its own."""
    timed(agent)
    assert agent.passes(PASSES_TO_SETTLE + DEVICE_PASSES, step(2)) == []
    assert agent.passes(1) == [2]
    assert agent.device_of[2] is None
    assert agent.passes(PASSES_TO_SETTLE, device(2), step(3)) == []
    assert agent.passes(1, device(3)) == [3]


def test_an_engine_that_stops_timing_is_not_waited_for_any_longer(agent: Agent) -> None:
    """After `PATIENCE` steps that got nothing all come out at once; the first device time begins anew."""
    timed(agent)
    agent.passes(DEVICE_PASSES + PASSES_TO_SETTLE + 1, *[step(number) for number in range(2, 2 + PATIENCE)])
    assert len(agent.steps) == 1 + PATIENCE
    assert agent.passes(PASSES_TO_SETTLE, step(50)) == [50]
    agent.passes(1, device(50))
    assert agent.passes(PASSES_TO_SETTLE, step(51)) == []
    assert agent.passes(1, device(51)) == [51]


def test_a_failed_step_is_not_waited_for(agent: Agent) -> None:
    """Its worker gave it up before the device was done."""
    timed(agent)
    assert agent.passes(PASSES_TO_SETTLE, step(2, failed=True)) == [2]


def test_at_the_end_nothing_is_waited_for(agent: Agent) -> None:
    """When no record can come any more every step comes out, in order."""
    timed(agent)
    agent.joiner.feed([step(3), step(2), device(3)], 1)
    _, steps = agent.joiner.end_pass(final=True)
    assert [(finished.step.number, finished.device) for finished in steps] == [(2, None), (3, device(3))]


def test_layer_times_without_a_device_time_are_not_lost(agent: Agent) -> None:
    """Where the record of the device was dropped the step has those of its layers alone."""
    assert agent.passes(PASSES_TO_SETTLE, layers(1), step(1)) == [1]
    assert (agent.steps[0].device, agent.steps[0].layers) == (None, layers(1))


def request(key: int, joined: int, finished: int) -> list[Event]:
    """Return the records of a request that took part in steps, from before the first to after the last."""
    return [
        Record(Kind.BEGIN, key, "POST", 1, 100 * joined - 20, 0, key),
        Record(Kind.QUEUED, key, "e", a=100 * joined - 10),
        Record(Kind.JOIN, key, "e", 1, joined, 100 * joined),
        Record(Kind.FINISH, key, "e", 0, finished, 100 * finished + 90, 2, 1),
        Record(Kind.END, key, "", 0, 100 * finished + 95),
    ]


def test_idle_time_and_links_do_not_depend_on_the_wait(agent: Agent) -> None:
    """What a step that waits says is what it says without a device, although the request is over by then."""
    plain = Agent()
    events = [*request(8, 1, 3), step(1), step(2), step(3)]
    plain.passes(5, *events)
    timed_events = [event for event in events if event != step(1)]
    agent.passes(1, device(1), step(1), *timed_events)
    agent.passes(5)
    agent.passes(3, device(2), device(3))
    assert [finished.device for finished in agent.steps] == [device(1), device(2), device(3)]
    assert [finished.idle_ns for finished in agent.steps] == [None, 10, 10]
    for one, other in zip(plain.steps, agent.steps, strict=True):
        assert (one.step, one.changes, one.idle_ns) == (other.step, other.changes, other.idle_ns)
    assert [change.event for finished in agent.steps for change in finished.changes] == ["join", "finish"]


def test_idle_time_of_the_device_counts_only_while_there_were_requests(agent: Agent) -> None:
    """The host knows whether anything waited; the device does not."""
    agent.passes(5, *request(8, 2, 2), *[step(number) for number in (1, 2, 3)], *map(device, (1, 2, 3)))
    assert [(finished.idle_ns, finished.device_idle_ns) for finished in agent.steps] == [
        (None, None), (10, 3), (None, None),
    ]  # fmt: skip


def test_a_request_waits_for_the_device_time_of_its_last_step(agent: Agent) -> None:
    """So that its stages have GPU time; not longer than a step waits, and not at all without a device."""
    timed(agent)
    agent.passes(PASSES_AFTER_END + 3, *request(8, 2, 3), step(2), step(3), device(2))
    assert agent.requests == []
    agent.passes(1, device(3))
    (finished,) = agent.requests
    assert finished.engine is not None
    assert finished.engine.device[3] == device(3)
    agent.passes(DEVICE_PASSES, *request(9, 4, 4), step(4))
    assert len(agent.requests) == 1
    agent.passes(1)
    assert len(agent.requests) == 2
    agent.passes(PASSES_AFTER_END + 1, *request(10, 5, 5))
    assert len(agent.requests) == 3, "its last step was never told, so nothing can come"


def test_device_times_of_steps_that_are_never_told_are_dropped(agent: Agent) -> None:
    """Only the newest are kept, and of layers too; a step that is told late finds its own."""
    count = 3 * MAX_EARLY
    agent.passes(1, *map(device, range(1, count + 1)), *map(layers, range(1, count + 1)))
    engine = agent.joiner.engines["e"]
    assert len(engine.early_device) == len(engine.layers) == MAX_EARLY
    assert agent.passes(PASSES_TO_SETTLE, step(count)) == [count]
    assert (agent.steps[-1].device, agent.steps[-1].layers) == (device(count), layers(count))
    assert len(engine.early_device) == len(engine.layers) == MAX_EARLY - 1


@pytest.mark.parametrize("every", [1, 3], ids=["all timed", "a third timed"])
def test_memory_does_not_grow_with_the_steps(agent: Agent, every: int) -> None:
    """After many steps little more is kept than of those that wait."""
    agent.passes(1, EngineInfo("e", "vllm", "m"))
    per_pass, passes = 20, 500
    for first in range(0, per_pass * passes, per_pass):
        numbers = range(first + 1, first + per_pass + 1)
        known = [number for number in numbers if number % every == 0]
        agent.passes(1, *map(step, numbers), *map(device, known), *map(layers, known))
    engine = agent.joiner.engines["e"]
    bound = KEPT_STEPS + per_pass * (DEVICE_PASSES + PASSES_TO_SETTLE + 2)
    assert len(engine.steps) <= bound
    assert len(engine.device) <= bound
    assert len(engine.layers) <= MAX_EARLY
    assert len(engine.early_device) <= MAX_EARLY
    agent.passes(DEVICE_PASSES + PASSES_TO_SETTLE + 1)
    assert [finished.step.number for finished in agent.steps] == list(range(1, per_pass * passes + 1))
    assert {number for number, time in agent.device_of.items() if time} == set(
        range(every, per_pass * passes + 1, every)
    )
