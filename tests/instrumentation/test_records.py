"""Records that say several things at once: the agent makes of them what it makes of one record for each."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource

from tailspan import attributes as attr
from tailspan.agent.blackbox import examine
from tailspan.agent.join import Joiner
from tailspan.agent.model import RequestState
from tailspan.agent.spans import SpanBuilder
from tailspan.agent.steps import MAX_EARLY
from tailspan.agent.worker import WorkerRings
from tailspan.recorder import AttributeSet, Engine, Request, begin_request, process
from tailspan.recorder.engine import step_work
from tailspan.recorder.layout import VERSION, Kind
from tailspan.recorder.reader import RingReader, read_history
from tailspan.settings import Settings

DESCRIPTION = AttributeSet({attr.GEN_AI_OPERATION: "chat", attr.GEN_AI_STREAM: True})


def joined(directory: Path) -> Joiner:
    """Return what the agent knows after reading all records."""
    rings, joiner = WorkerRings(directory), Joiner()
    rings.discover()
    for _ in range(2):
        for pid, events in rings.read():
            joiner.feed(events, pid)
    return joiner


def kinds(directory: Path) -> list[Kind]:
    """Return the kinds of all records but registered strings, in order; changes nothing."""
    (path,) = directory.glob("*.ring")
    found = [Kind(int.from_bytes(slot[:2], "little")) for slot in read_history(path)[1]]
    return [kind for kind in found if kind is not Kind.STRING]


def step(engine: Engine, number: int, *, failed: bool = False) -> None:
    """Record a step from 100 * number to 100 * number + 90."""
    begin = 100 * number
    engine.step(number, begin, begin + 90, requests=1, prefill_tokens=4, decode_tokens=0, failed=failed)


def compare(worker_dir: Path, one: Callable[[Engine, int], None], two: Callable[[Engine, int], None]) -> RequestState:
    """Let two requests, each of an engine of its own, record in two ways; return the state if it is the same."""
    keys = []
    for record in (one, two):
        request, engine = begin_request("generate", 50), Engine("transformers", "m")
        engine.queued(request.key, 60, 4)
        record(engine, request.key)
        keys.append(request.key)
    states = joined(worker_dir).open
    seen = []
    for key in keys:
        state = asdict(states[key])
        for part in state["memberships"]:
            del part["samples_token"]
        seen.append({name: value for name, value in state.items() if name not in ("key", "trace_id", "engine")})
    assert seen[0] == seen[1]
    return states[keys[0]]


def test_a_foreseen_first_token_comes_with_the_end_of_its_step(worker_dir: Path) -> None:
    """The same state as with a record for the token, and one record less."""

    def foreseen(engine: Engine, key: int) -> None:
        engine.join(key, 1, 100, samples_token=True)
        step(engine, 1)

    def told(engine: Engine, key: int) -> None:
        engine.join(key, 1, 100)
        step(engine, 1)
        engine.first_token(key, 1, 190)

    state = compare(worker_dir, foreseen, told)
    assert (state.first_token_step, state.first_token_ns) == (1, 190)
    assert kinds(worker_dir).count(Kind.FIRST_TOKEN) == 1


@pytest.mark.parametrize("how", ["failed", "left", "finished", "not ended", "another step"])
def test_without_its_step_there_is_no_first_token(worker_dir: Path, how: str) -> None:
    """A step that failed or never ended samples nothing, and nothing for a request that was gone by then."""

    def record(engine: Engine, key: int, samples_token: bool) -> None:
        engine.join(key, 2, 200, samples_token=samples_token)
        if how == "left":
            engine.leave(key, 2, 250)
        elif how == "finished":
            engine.finish(key, 2, 250, 0)
        if how != "not ended":
            step(engine, 1 if how == "another step" else 2, failed=how == "failed")

    state = compare(
        worker_dir, lambda engine, key: record(engine, key, True), lambda engine, key: record(engine, key, False)
    )
    assert state.first_token_ns is None
    assert len(state.memberships) == 1


def test_a_foreseen_token_after_an_eviction_ends_the_second_prefill(worker_dir: Path) -> None:
    """The first token of the request stays where it was; the steps before the new one give no token."""

    def record(engine: Engine, key: int, samples_token: bool) -> None:
        for number in (1, 4):
            engine.join(key, number, 100 * number, samples_token=samples_token)
            step(engine, number)
            if not samples_token:
                engine.first_token(key, number, 100 * number + 90)
            if number == 1:
                engine.leave(key, 1, 200)

    state = compare(
        worker_dir, lambda engine, key: record(engine, key, True), lambda engine, key: record(engine, key, False)
    )
    assert (state.first_token_step, state.first_token_ns) == (1, 190)
    assert [part.first_token_step for part in state.memberships] == [None, 4]


def test_a_token_thrown_away_by_an_eviction_is_sampled_again(worker_dir: Path) -> None:
    """Planned ahead: the request is evicted before its first step has ended, and joins once more."""
    request, engine = begin_request("generate", 50), Engine("transformers", "m")
    engine.queued(request.key, 60)
    engine.join(request.key, 1, 100, samples_token=True)
    engine.leave(request.key, 1, 150)
    engine.join(request.key, 3, 300, samples_token=True)
    for number in (1, 2, 3):
        step(engine, number)
    state = joined(worker_dir).open[request.key]
    assert (state.first_token_step, state.first_token_ns) == (3, 390)


def test_a_worker_that_dies_between_join_and_token_leaves_the_request_in_prefill(worker_dir: Path) -> None:
    """The record of the join is there when the step begins, and says nothing about what has not happened."""
    engine = Engine("transformers", "m")
    requests = [begin_request("generate", 50, None, DESCRIPTION) for _ in range(3)]
    for number, request in enumerate(requests):
        engine.queued(request.key, 60, 4, f"req_{number}")
    engine.join(requests[0].key, 1, 100, samples_token=True)
    step(engine, 1)
    engine.join(requests[1].key, 2, 200, samples_token=True)
    begin_request("generate", 250)
    (report,) = examine(worker_dir)
    assert [(line.request_id, line.stage) for line in report.open_requests] == [
        ("req_0", "decode"),
        ("req_1", "prefill"),
        ("req_2", "queue"),
        ("", "receive"),
    ]


@pytest.mark.parametrize(
    ("response_id", "records"),
    [
        ("r", 1),
        ("r" * 24, 1),
        ("r" * 25, 2),
        ("ü" * 12, 1),
        ("ü" * 12 + "r", 2),
        ("\U0001f680" * 6, 1),
        ("\udcff", 1),
        ("r" * 40, 2),
        ("r" * 41, 3),
        ("r" * 300, 7),
    ],
)
def test_an_id_of_24_bytes_is_part_of_queued(worker_dir: Path, response_id: str, records: int) -> None:
    """A longer one has records of its own; both read back as a text attribute does."""
    request, engine = begin_request("generate", 50), Engine("transformers", "m")
    engine.queued(request.key, 60, 1 << 40, response_id)
    assert len(kinds(worker_dir)) == 1 + records
    state = joined(worker_dir).open[request.key]
    assert (state.queued_ns, state.attributes[attr.GEN_AI_INPUT_TOKENS]) == (60, 1 << 40)
    assert state.attributes[attr.GEN_AI_RESPONSE_ID] == as_text(response_id)


@pytest.mark.parametrize(("response_id", "records"), [("r" * 40, 1), ("r" * 41, 3), ("ü" * 20, 1), ("ü" * 20 + "r", 3)])
def test_an_id_of_40_bytes_is_part_of_a_description(worker_dir: Path, response_id: str, records: int) -> None:
    """The attributes are there with a short id and with a long one."""
    request = begin_request("POST", 50)
    request.describe(DESCRIPTION, response_id)
    assert len(kinds(worker_dir)) == 1 + records
    assert joined(worker_dir).open[request.key].attributes == {
        attr.GEN_AI_OPERATION: "chat",
        attr.GEN_AI_STREAM: True,
        attr.GEN_AI_RESPONSE_ID: as_text(response_id),
    }


def as_text(value: str) -> str:
    """Return what a text attribute keeps of a value."""
    return value.encode("utf-8", "replace")[:240].decode("utf-8", "replace")


def test_a_queued_record_without_id_has_none(worker_dir: Path) -> None:
    """Where the id is known from elsewhere, or not at all, nothing is set."""
    request = begin_request("generate", 50)
    request.text(attr.GEN_AI_RESPONSE_ID, "known")
    Engine("transformers", "m").queued(request.key, 60)
    assert joined(worker_dir).open[request.key].attributes == {attr.GEN_AI_RESPONSE_ID: "known"}


def test_attributes_at_the_begin_are_part_of_its_record(worker_dir: Path) -> None:
    """Later ones win, and a request without any has none."""
    described = begin_request("generate", 50, None, DESCRIPTION)
    plain = begin_request("generate", 51)
    assert kinds(worker_dir) == [Kind.BEGIN, Kind.BEGIN]
    described.attribute(attr.GEN_AI_STREAM, False)
    states = joined(worker_dir).open
    assert states[described.key].attributes == {attr.GEN_AI_OPERATION: "chat", attr.GEN_AI_STREAM: False}
    assert states[described.key].name == states[plain.key].name == "generate"
    assert states[plain.key].attributes == {}


@pytest.mark.parametrize("flags", [0, 1, 0xFF])
def test_ids_keep_all_their_bits(worker_dir: Path, flags: int) -> None:
    """Trace ids, parents and keys are unsigned, and the caller's flags are kept."""
    trace, parent = (1 << 128) - 2, (1 << 64) - 3
    request = begin_request("generate", 50, f"00-{trace:032x}-{parent:016x}-{flags:02x}", DESCRIPTION)
    state = joined(worker_dir).open[request.key]
    assert (state.trace_id, state.parent_id, state.flags) == (trace, parent, flags)
    assert request.traceparent == f"00-{trace:032x}-{state.key:016x}-{flags:02x}"


@pytest.fixture
def small_ring(worker_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recorder whose rings hold 256 records."""
    monkeypatch.setenv("TAILSPAN_RING_RECORDS", "256")
    process.close()
    process.start(Settings.from_environment())
    return worker_dir


def test_a_full_ring_leaves_out_whole_requests_and_drops_the_rest(small_ring: Path) -> None:
    """No BEGIN goes into the last quarter, QUEUED and JOIN do until it is full; all is counted."""
    engine = Engine("transformers", "m")
    requests: list[Request] = []
    while not requests or requests[-1].recorded:
        requests.append(begin_request("generate", 50, None, DESCRIPTION))
    *kept, left_out = requests
    begun = len(kinds(small_ring))
    assert begun == len(kept)
    engine.queued(left_out.key, 60, 4, "left out")
    engine.join(left_out.key, 1, 100, samples_token=True)
    left_out.describe(DESCRIPTION, "left out")
    assert len(kinds(small_ring)) == begun
    for request in kept:
        engine.queued(request.key, 60, 4, "kept")
        engine.join(request.key, 1, 100, samples_token=True)
    (path,) = small_ring.glob("*.ring")
    _, slots, dropped = read_history(path)
    assert len(slots) == 256
    assert dropped > 0
    joiner = joined(small_ring)
    assert left_out.key not in joiner.open
    first = joiner.open[kept[0].key]
    assert (first.attributes[attr.GEN_AI_RESPONSE_ID], len(first.memberships)) == ("kept", 1)
    assert joiner.open[kept[-1].key].queued_ns is None
    assert joiner.open[kept[-1].key].attributes == {attr.GEN_AI_OPERATION: "chat", attr.GEN_AI_STREAM: True}


def test_a_ring_of_another_version_is_refused(worker_dir: Path) -> None:
    """Its bytes mean something else, so the reader says which version it is and which it wants."""
    begin_request("generate", 50)
    (path,) = worker_dir.glob("*.ring")
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, 8, VERSION - 1)
    older = worker_dir / "older.ring"
    older.write_bytes(data)
    message = f"has ring version {VERSION - 1}, or was cut short; this is version {VERSION}"
    with pytest.raises(ValueError, match=message):
        RingReader(older)
    with pytest.raises(ValueError, match=message):
        read_history(older)


def test_the_model_runners_share_of_a_step(worker_dir: Path) -> None:
    """What a worker notes of a step is on the step's span, once; of steps that are never told little is kept."""
    engine = Engine("vllm", "m")
    for number in range(1, 3 * MAX_EARLY):
        step_work(engine.name, number, 50, 20)
    last = 3 * MAX_EARLY
    step_work(engine.name, last, 60, 25)
    step(engine, last)
    joiner = joined(worker_dir)
    assert len(joiner.engines[engine.id].work) == MAX_EARLY
    _, steps = joiner.end_pass(final=True)
    builder = SpanBuilder(Resource({}), 0)
    (span,) = [builder.step(finished) for finished in steps]
    assert (span.attributes[attr.STEP_EXECUTE_NS], span.attributes[attr.STEP_SAMPLE_NS]) == (60, 25)
    assert last not in joiner.engines[engine.id].work


def test_a_second_call_adds_its_tokens(worker_dir: Path) -> None:
    """A request whose caller prompts the engine twice has the tokens of both, and no decode in between."""
    request, engine = begin_request("generate", 50), Engine("vllm", "m")
    for number in (1, 3):
        engine.queued(request.key, 100 * number - 10, 4)
        engine.join(request.key, number, 100 * number, samples_token=True)
        step(engine, number)
        engine.finish(request.key, number, 100 * number + 90, 2)
    state = joined(worker_dir).open[request.key]
    assert state.attributes[attr.GEN_AI_OUTPUT_TOKENS] == 4
    first, second = state.memberships
    assert (first.leave_step, first.leave_ns, second.is_next_call) == (1, 190, True)
    assert state.queued_ns == 90
