"""Device times of steps and layers on their way through the ring: whole or not at all."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailspan import attributes as attr
from tailspan.agent.decode import Event, RingDecoder
from tailspan.agent.device import DeviceTime, Layers
from tailspan.errors import UserError
from tailspan.layers.parts import OUTSIDE, Part, encode_parts
from tailspan.recorder import Engine, layout, process
from tailspan.recorder.engine import step_device, step_layers
from tailspan.recorder.layout import Kind
from tailspan.recorder.reader import read_history
from tailspan.recorder.ring import MAX_NAME_BYTES
from tailspan.settings import Settings

CUDA = attr.DEVICES.index("cuda")


def model(layers: int) -> list[Part]:
    """Return the parts of a decoder-only model whose odd layers have other parts than the even ones."""
    inside = [Part(layer, kind) for layer in range(layers) for kind in ("norm", "attention", "mlp")[layer % 2 :]]
    return [Part(OUTSIDE, "embedding"), *inside, Part(OUTSIDE, "norm"), Part(OUTSIDE, "lm_head")]


def slots(directory: Path) -> list[bytes]:
    """Return all records of the only ring."""
    (path,) = directory.glob("*.ring")
    return read_history(path)[1]


def dropped(directory: Path) -> int:
    """Return how many records of the only ring were dropped."""
    (path,) = directory.glob("*.ring")
    return read_history(path)[2]


def kind_of(slot: bytes) -> int:
    """Return the kind of a record."""
    return int.from_bytes(slot[:2], "little")


def decoded(records: list[bytes]) -> list[Event]:
    """Return the events about layers and devices."""
    return [event for event in RingDecoder().decode(records) if isinstance(event, Layers | DeviceTime)]


def restart(monkeypatch: pytest.MonkeyPatch, **environment: str) -> None:
    """Start the recorder anew with other settings."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    process.close()
    process.start(Settings.from_environment())


def test_the_device_time_of_a_step_comes_out_as_it_went_in(worker_dir: Path) -> None:
    """Every number keeps its sign and size; what is not known is None; numbers of steps may be large."""
    engine = Engine("vllm", "m")
    step_device(engine.name, 1 << 40, CUDA, 1 << 41, 5, 1 << 60, 7, 9)
    step_device(engine.name, 2, attr.DEVICES.index("cpu"), 0)
    assert decoded(slots(worker_dir)) == [
        DeviceTime(engine.id, 1 << 40, "cuda", 1 << 41, 5, 1 << 60, 7, 9),
        DeviceTime(engine.id, 2, "cpu", 0, None, None, 0, None),
    ]


@pytest.mark.parametrize(("device", "busy_ns"), [(0, 5), (len(attr.DEVICES), 5), (0xFFFF, 5), (CUDA, -1)])
def test_a_device_time_that_makes_no_sense_is_left_out(worker_dir: Path, device: int, busy_ns: int) -> None:
    """Of a device that has no name here, or with a negative time; the next one is read."""
    engine = Engine("vllm", "m")
    step_device(engine.name, 1, device, busy_ns)
    step_device(engine.name, 2, CUDA, 6)
    assert [event.number for event in decoded(slots(worker_dir)) if isinstance(event, DeviceTime)] == [2]


@pytest.mark.parametrize("layers", [0, 1, 7, 8, 60])
@pytest.mark.parametrize(("graph", "prefill"), [(False, True), (True, False)])
def test_layer_times_come_out_as_they_went_in(worker_dir: Path, layers: int, graph: bool, prefill: bool) -> None:
    """Any number of parts, in records of ten; the times are those that 32 bits can hold."""
    parts, engine = model(layers), Engine("vllm", "m")
    times = [1000.1 * number for number in range(len(parts))]
    step_layers(engine.name, 3, encode_parts(parts), times, 40, 1234, graph=graph, prefill=prefill)
    records = slots(worker_dir)
    assert sum(kind_of(slot) == Kind.LAYER_TIMES for slot in records) == -(-len(parts) // 10)
    held = tuple(struct.unpack(f"<{len(times)}f", struct.pack(f"<{len(times)}f", *times)))
    mode, phase = "graph" if graph else "eager", "prefill" if prefill else "decode"
    names = tuple(part.name for part in parts)
    assert decoded(records) == [Layers(engine.id, 3, names, held, 40, 1234, mode, phase)]
    assert held == pytest.approx(times, rel=1e-7)


def test_the_parts_of_a_model_may_be_a_longer_text_than_a_name(worker_dir: Path) -> None:
    """A hybrid model of which no two neighbours are alike is whole, and names of other things are cut as before."""
    parts, engine = model(200), Engine("vllm", "m")
    text = encode_parts(parts)
    assert MAX_NAME_BYTES < len(text) <= layout.MAX_PARTS_BYTES
    step_layers(engine.name, 1, text, [1.0] * len(parts), 1, 0)
    step_layers(engine.name, 2, text, [2.0] * len(parts), 1, 0)
    process.ring().string("n" * 2000)
    records = slots(worker_dir)
    events = [event for event in decoded(records) if isinstance(event, Layers)]
    assert [(event.number, event.parts[-2:], set(event.ns)) for event in events] == [
        (1, ("norm", "lm_head"), {1.0}),
        (2, ("norm", "lm_head"), {2.0}),
    ]
    lengths = [int.from_bytes(slot[8:16], "little") for slot in records if kind_of(slot) == Kind.STRING]
    assert set(lengths) == {len(engine.name), len(text), MAX_NAME_BYTES}


def test_a_text_of_parts_that_would_have_to_be_cut_leaves_nothing_behind(worker_dir: Path) -> None:
    """Its records are not written, and counted; what comes next is."""
    parts, engine = model(600), Engine("vllm", "m")
    step_layers(engine.name, 1, encode_parts(parts), [1.0] * len(parts), 1, 0)
    assert dropped(worker_dir) == 1 + -(-len(parts) // 10)
    step_device(engine.name, 1, CUDA, 5)
    assert [kind for kind in map(kind_of, slots(worker_dir)) if kind != Kind.STRING] == [Kind.STEP_DEVICE]


@pytest.mark.parametrize("room", range(12))
def test_a_ring_that_is_nearly_full_takes_all_layer_times_of_a_step_or_none(
    worker_dir: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Whatever room there is, no half group is written; what is not written is counted."""
    restart(monkeypatch, TAILSPAN_RING_RECORDS="64")
    engine, parts = Engine("vllm", "m"), model(10)
    chunks = -(-len(parts) // 10)
    texts = layout.chunks_of(len(engine.name)) + layout.chunks_of(len(encode_parts(parts)))
    for _ in range(64 - room):
        process.ring().record(int(Kind.STEP_WORK), 0, 0, 1)
    step_layers(engine.name, 1, encode_parts(parts), [1.0] * len(parts), 1, 0)
    fits = texts + 1 + chunks <= room
    assert len(decoded(slots(worker_dir))) == fits
    assert any(kind_of(slot) in (Kind.LAYERS, Kind.LAYER_TIMES) for slot in slots(worker_dir)) == fits
    assert (dropped(worker_dir) > 0) != fits


def test_both_outcomes_of_a_nearly_full_ring_are_tested() -> None:
    """The group of the test before takes fewer than the most room that is tried, and more than the least."""
    parts = model(10)
    name = len(Engine("vllm", "m").name)
    assert 0 < layout.chunks_of(name) + layout.chunks_of(len(encode_parts(parts))) + 1 + -(-len(parts) // 10) <= 11


def test_a_process_without_a_ring_keeps_nothing(worker_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Device and layer times of a thread for which there is no room are left out without an error."""
    monkeypatch.setattr(process, "MAX_RINGS", 0)
    engine = Engine("vllm", "m")
    step_layers(engine.name, 1, "norm", [1.0], 1, 0)
    step_layers(engine.name, 1, encode_parts(model(600)), [1.0] * len(model(600)), 1, 0)
    step_device(engine.name, 1, CUDA, 5)
    assert not list(worker_dir.glob("*.ring"))


def group(directory: Path, layers: int = 12) -> list[bytes]:
    """Record two groups of a model; return all records."""
    engine, parts = Engine("vllm", "m"), model(layers)
    for number in (1, 2):
        step_layers(engine.name, number, encode_parts(parts), [float(number)] * len(parts), 1, 0)
        step_device(engine.name, number, CUDA, 5)
    return slots(directory)


def test_a_group_that_two_reads_cut_is_put_together(worker_dir: Path) -> None:
    """Wherever the cut is, both groups come out as in one read."""
    records = group(worker_dir)
    whole = decoded(records)
    assert [type(event) for event in whole] == [Layers, DeviceTime, Layers, DeviceTime]
    for cut in range(len(records)):
        decoder = RingDecoder()
        events = [*decoder.decode(records[:cut]), *decoder.decode(records[cut:])]
        assert [event for event in events if isinstance(event, Layers | DeviceTime)] == whole


def test_a_group_that_lost_a_record_is_left_out(worker_dir: Path) -> None:
    """Whichever record of the first group is lost, only the second comes out, and all device times."""
    records = group(worker_dir)
    (first, second) = [slot for slot in records if kind_of(slot) == Kind.LAYERS]
    times = [slot for slot in records if kind_of(slot) == Kind.LAYER_TIMES]
    for lost in (first, *times[: len(times) // 2]):
        events = decoded([slot for slot in records if slot is not lost])
        assert [event.number for event in events if isinstance(event, Layers)] == [2]
        assert [event.number for event in events if isinstance(event, DeviceTime)] == [1, 2]
    events = decoded([slot for slot in records if slot is not second])
    assert [event.number for event in events if isinstance(event, Layers)] == [1]
    events = decoded([times[0] if slot is times[1] else slot for slot in records])
    assert [event.number for event in events if isinstance(event, Layers)] == [2]


def test_a_group_whose_text_was_lost_is_left_out(worker_dir: Path) -> None:
    """Without the names of the parts the times say nothing."""
    records = [slot for slot in group(worker_dir) if kind_of(slot) != Kind.STRING]
    assert [type(event) for event in decoded(records)] == [DeviceTime, DeviceTime]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("(too many names)", 1),
        ("norm|", 1),
        ("norm|3-2:mlp", 2),
        ("29:norm", 1),
        ("0-99999:norm", 100_000),
        ("0-1:norm", 3),
        ("0-1:norm", 1),
        ("Norm", 1),
    ],
)
def test_a_text_that_names_other_parts_is_left_out(worker_dir: Path, text: str, count: int) -> None:
    """What `encode_parts` did not write, or of another number of parts than there are times."""
    engine = Engine("vllm", "m")
    step_layers(engine.name, 1, text, [1.0] * count, 1, 0)
    step_layers(engine.name, 2, "norm", [1.0], 1, 0)
    assert [event.number for event in decoded(slots(worker_dir)) if isinstance(event, Layers)] == [2]


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_times_that_are_none_are_left_out(worker_dir: Path, wrong: float) -> None:
    """A negative time, or one that is no number, spoils its group only."""
    engine = Engine("vllm", "m")
    step_layers(engine.name, 1, "norm|mlp", [1.0, wrong], 1, 0)
    step_layers(engine.name, 2, "norm|mlp", [1.0, 0.0], 1, 0)
    assert [event.number for event in decoded(slots(worker_dir)) if isinstance(event, Layers)] == [2]


ABOUT_STEPS = (Kind.STEP_DEVICE, Kind.STEP_WORK, Kind.LAYERS, Kind.LAYER_TIMES)


@given(st.lists(st.tuples(st.sampled_from(ABOUT_STEPS), st.binary(min_size=62, max_size=62)), max_size=30))
def test_no_garbage_is_an_error(garbage: list[tuple[Kind, bytes]]) -> None:
    """Records of these kinds with any other bytes are read or left out; a whole group after them is read."""
    parts = struct.pack("<HHIQ40sQ", Kind.STRING, 0, 7, 8, b"norm|mlp", 1)
    head = layout.RECORD.pack(Kind.LAYERS, 0, 7, 1, 7, 2, 1, 0, 0, 2)
    times = layout.LAYER_TIMES_RECORD.pack(Kind.LAYER_TIMES, 0, 7, 1, 1.0, 2.0, *[0.0] * 8, 3)
    records = [kind.to_bytes(2, "little") + rest for kind, rest in garbage]
    events = decoded([*records, parts, head, times])
    assert events[-1] == Layers("norm|mlp", 1, ("norm", "mlp"), (1.0, 2.0), 1, 0, "eager", "decode")


@pytest.mark.parametrize(
    ("variable", "value"),
    [("TAILSPAN_DEVICE_TIMING", "cuda"), ("TAILSPAN_LAYER_BUDGET", "51"), ("TAILSPAN_LAYER_BUDGET", "little"),
     ("TAILSPAN_LAYER_BUDGET", "-1"), ("TAILSPAN_LAYER_BUDGET", "nan")],
)  # fmt: skip
def test_wrong_settings_are_refused(variable: str, value: str) -> None:
    """The message names the variable, what it holds, and what is allowed."""
    with pytest.raises(UserError, match=variable) as caught:
        Settings.from_environment({variable: value})
    assert value in str(caught.value)
    assert caught.value.remedy.startswith("Use ")


@pytest.mark.parametrize(
    ("timing", "budget", "expected"),
    [("", "", (True, 0.005)), ("0", "0", (False, 0.0)), ("on", "50", (True, 0.5)), ("1", "2%", (True, 0.02))],
)
def test_hooks_know_the_settings_also_in_a_forked_process(
    worker_dir: Path, monkeypatch: pytest.MonkeyPatch, timing: str, budget: str, expected: tuple[bool, float]
) -> None:
    """A share of 1, not a percentage; without a recorder nothing is timed."""
    restart(monkeypatch, TAILSPAN_DEVICE_TIMING=timing, TAILSPAN_LAYER_BUDGET=budget)
    assert (process.device_timing(), process.layer_budget()) == expected
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, repr((process.device_timing(), process.layer_budget())).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100).decode() == repr(expected)
    os.close(read)
    os.close(write)
    process.close()
    assert (process.device_timing(), process.layer_budget()) == (False, 0.0)
