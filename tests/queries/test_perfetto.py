"""The export to trace viewers, checked by a strict reader of the format against the traffic that was sent."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailspan import attributes
from tailspan.cli import main
from tailspan_queries import catalog, perfetto, perfetto_records
from tailspan_queries.client import Client, connect
from tailspan_queries.traces import trace_report
from tests.queries import engine_traffic, perfetto_traffic, traffic
from tests.queries.trace_format import Placed, Trace, check_trace, read_trace
from tests.support.collector import RunningCollector, wait_until

WINDOW = ["--since", "2026-11-29T12:00Z", "--until", "2026-11-29T12:10Z"]
Capture = pytest.CaptureFixture[str]
Engine = engine_traffic.Engine
Served = list[tuple[Engine, traffic.Request]]
Export = Callable[..., Trace]


@pytest.fixture(scope="module")
def fleet() -> list[Engine]:
    """Three engines after their run."""
    return perfetto_traffic.engines()


@pytest.fixture(scope="module")
def served(fleet: list[Engine]) -> Served:
    """The requests of these engines."""
    return perfetto_traffic.requests(fleet)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, fleet: list[Engine], served: Served) -> Iterator[Client]:
    """A ClickHouse with the traffic."""
    spans = [span for _, request in served for span in traffic.request_spans(request)]
    spans += [span for engine in fleet for span in perfetto_traffic.step_spans(engine)]
    spans += (
        perfetto_traffic.stalled(fleet) + perfetto_traffic.aborted()[1] + perfetto_traffic.other_spans(served[0][1])
    )
    spans += [traffic.event_span(event) for event in perfetto_traffic.events(served[3][1].trace_id)]
    with RunningCollector(tmp_path_factory.mktemp("perfetto") / "data", "--batch-seconds", "0.2") as collector:
        collector.export(*traffic.messages(spans), perfetto_traffic.engine_traced())
        count = len(spans) + 1
        assert collector.wait_rows(count) == count
        indexed = "select sum(span_count) from tailspan.traces"
        assert wait_until(lambda: collector.query(indexed)[0][0], lambda found: found >= count) == count
        engine_traced = "select count() from tailspan.engine_requests"
        assert wait_until(lambda: collector.query(engine_traced)[0][0], lambda found: found == 1) == 1
        client = connect(collector.url)
        yield client
        client.close()


@pytest.fixture(autouse=True)
def _environment(store: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Point the command to the test's ClickHouse and away from the tester's folder."""
    monkeypatch.setenv("TAILSPAN_CLICKHOUSE_URL", store.url)
    monkeypatch.chdir(tmp_path)


def export(*arguments: str, output: str = "trace.json") -> Trace:
    """Run the command and read its file strictly."""
    assert main(["export", "--perfetto", "-o", output, *arguments]) == 0
    return read_trace(Path(output))


@pytest.fixture(scope="module")
def whole(store: Client, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """The export of all traffic."""
    path = tmp_path_factory.mktemp("whole") / "trace.json.gz"
    assert main(["export", "--perfetto", "-o", str(path), "--url", store.url, *WINDOW]) == 0
    return read_trace(path)


def children(placed: Placed, trace: Trace) -> list[Placed]:
    """Return the slices that lie directly in a slice."""
    lane = trace.lanes[placed.event["pid"], placed.event["tid"]]
    return [other for other in lane if other.parent is placed]


def test_every_request_is_a_slice_with_its_stages(whole: Trace, served: Served) -> None:
    """Begin, length, tokens and stages of each request are those that were sent, to the nanosecond."""
    slices = {placed.args["span_id"]: placed for placed in whole.slices("request")}
    assert len(slices) == len(whole.slices("request")) == len(served) + 2
    for _, request in served:
        placed = slices[request.span_id.hex()]
        assert whole.base_ns + placed.begin_ns == request.start_ns
        assert placed.wall_ns == placed.args["e2e_ns"] == request.e2e_ns
        assert placed.parent is None
        assert placed.args["trace_id"] == request.trace_id.hex()
        assert placed.args["ttft_ns"] == request.ttft_ns
        assert (placed.args["input_tokens"], placed.args["output_tokens"]) == (
            request.input_tokens,
            request.output_tokens,
        )
        assert placed.args["outcome"] == ("error" if request.failed else "ok")
        assert ("error" in placed.args) == request.failed
        assert whole.process(placed) == f"vllm · {request.instance}"
        stages = children(placed, whole)
        assert [(stage.event["name"], stage.wall_ns) for stage in stages] == [
            (stage.name, stage.wall_ns) for stage in request.stages if stage.wall_ns
        ]
        assert all("clipped_ns" not in stage.args for stage in stages)


def test_numbers_are_those_of_the_trace_command(whole: Trace, served: Served, store: Client) -> None:
    """Stages, their steps and busy times equal those that `tailspan trace` shows."""
    slices = {placed.args["span_id"]: placed for placed in whole.slices("request")}
    for _, request in served[::15]:
        (ledger,) = trace_report(store, request.trace_id.hex()).requests
        placed = slices[ledger.request.span_id]
        assert whole.base_ns + placed.begin_ns == ledger.request.start_ns
        assert placed.args["unattributed_ns"] == ledger.unattributed_ns
        drawn = [stage for stage in ledger.stages if stage.duration_ns]
        assert placed.args.get("stages_without_length", {}).keys() == {
            stage.stage for stage in ledger.stages if stage not in drawn
        }
        for stage, span in zip(children(placed, whole), drawn, strict=True):
            assert (stage.event["name"], stage.args["wall_ns"]) == (span.stage, span.duration_ns)
            assert whole.base_ns + stage.begin_ns == span.start_ns
            assert stage.args.get("first_step", 0) == span.first_step
            assert stage.args.get("last_step", 0) == span.last_step
            assert stage.args.get("engine", "") == span.engine_id


def test_requests_take_as_few_lanes_as_run_at_once(whole: Trace, served: Served) -> None:
    """The lanes of a process are as many as its requests that overlap at most."""
    for instance in {request.instance for _, request in served}:
        moments = []
        for _, request in served:
            if request.instance == instance:
                moments += [(request.start_ns, 1), (request.start_ns + request.e2e_ns, -1)]
        running = most = 0
        for _, change in sorted(moments):
            running += change
            most = max(most, running)
        lanes = {
            placed.event["tid"] for placed in whole.slices("request") if whole.process(placed) == f"vllm · {instance}"
        }
        assert len(lanes) == most > 1


def test_every_step_is_a_slice_of_its_engine(whole: Trace, fleet: list[Engine]) -> None:
    """Steps that are stored are there once; those that overlap are in lanes beside each other."""
    found: dict[tuple[str, int], Placed] = {}
    for placed in whole.slices("step"):
        name = whole.lane(placed).partition(":")[0]
        found[name, placed.args["step"]] = placed
    assert len(found) == len(whole.slices("step")) == sum(len(engine.stored) for engine in fleet)
    for engine in fleet:
        lanes = set()
        for step in engine.stored:
            placed = found[engine.engine_id, step.number]
            assert (whole.base_ns + placed.begin_ns, placed.wall_ns) == (step.begin_ns, step.wall_ns)
            assert placed.args["prefill_tokens"] == step.prefill_tokens
            assert placed.args["decode_tokens"] == step.decode_tokens
            assert placed.args["waiting"] == step.waiting
            assert placed.args["idle_before_ns"] == step.idle_ns
            assert placed.args["kv_usage_ratio"] == 0.5
            assert ("stands_for_steps" in placed.args) == (step.weight != 1)
            words = [
                word for word, tokens in (("prefill", step.prefill_tokens), ("decode", step.decode_tokens)) if tokens
            ]
            assert placed.event["name"] == " + ".join(words)
            lanes.add(whole.lane(placed))
        expected = {"engine-b: steps", "engine-b: steps 2"} if engine.overlap_ns else {f"{engine.engine_id}: steps"}
        assert lanes == expected


def test_a_device_slice_is_as_long_as_measured_unless_cut(whole: Trace, fleet: list[Engine]) -> None:
    """The device's lane has its begin and busy time; what would overlap the step before is cut and says so."""
    found = {(whole.lane(placed), placed.args["step"]): placed for placed in whole.slices("device")}
    cut = 0
    for engine, lane in zip(fleet, ("engine-a: cuda", "engine-b: cpu (host clock)", ""), strict=True):
        free_ns = 0
        for step in engine.stored:
            device = perfetto_traffic.device_of(step)
            if device is None or device.begin_ns is None:
                assert (lane, step.number) not in found
                continue
            placed = found.pop((lane, step.number))
            begin_ns = max(device.begin_ns, free_ns)
            free_ns = device.begin_ns + device.busy_ns
            assert (whole.base_ns + placed.begin_ns, whole.base_ns + placed.end_ns) == (begin_ns, free_ns)
            assert placed.args["busy_ns"] == device.busy_ns
            assert placed.args["uncertainty_ns"] == 20_000
            assert placed.args.get("launch_ns") == (250_000 if device.kind == "cuda" else None)
            assert placed.args.get("clipped_ns", 0) == device.busy_ns - placed.wall_ns
            cut += "clipped_ns" in placed.args
    assert not found
    assert cut > 5


def test_layers_lie_in_their_step_in_order(whole: Trace, fleet: list[Engine]) -> None:
    """A sampled step has a slice for each part, in the order told, as long as measured, and a slice for each layer."""
    devices = {(whole.lane(placed).partition(":")[0], placed.args["step"]): placed for placed in whole.slices("device")}
    sampled = 0
    for engine in fleet:
        for step in engine.stored:
            device = perfetto_traffic.device_of(step)
            if device is None or not device.parts or device.begin_ns is None:
                continue
            placed = devices[engine.engine_id, step.number]
            sampled += 1
            parts, layers = [], []
            for child in children(placed, whole):
                inner = children(child, whole)
                if inner:
                    layers.append(child.event["name"])
                    if "clipped_ns" not in placed.args:
                        assert child.args["ns"] == pytest.approx(sum(part.args["ns"] for part in inner))
                for part in inner or [child]:
                    number = part.args.get("layer")
                    parts.append((part.event["name"] if number is None else f"{number}/{part.event['name']}", part))
            # What is cut from the begin of a step can be whole parts.
            kept = len(parts) if "clipped_ns" in placed.args else len(device.parts)
            assert [name for name, _ in parts] == list(device.parts)[-kept:]
            assert [part.args["ns"] for _, part in parts] == list(device.parts_ns)[-kept:]
            if "clipped_ns" not in placed.args:
                assert layers == [f"layer {number}" for number in range(perfetto_traffic.LAYERS)]
                for _, part in parts:
                    assert part.wall_ns == pytest.approx(part.args["ns"], abs=1.01)
            assert sum(part.wall_ns for _, part in parts) == placed.wall_ns
    assert sampled > 10
    assert {placed.event["name"] for placed in whole.slices("layer")} >= {"attention", "mlp", "lm_head", "sampler"}


def test_layers_are_those_of_the_table(whole: Trace, store: Client) -> None:
    """The time of each part of a step is that of `tailspan.layers`; only what was cut away as a whole is missing."""
    query = catalog.Query("layers", "select engine_id, step, layer, kind, ns from tailspan.layers")
    stored: dict[tuple[object, ...], float] = defaultdict(float)
    for engine_id, step, layer, kind, ns in store.execute(query, {}).rows:
        stored[engine_id, step, layer, kind] += ns
    parts = [placed for placed in whole.slices("layer") if not placed.event["name"].startswith("layer ")]
    shown: dict[tuple[object, ...], float] = defaultdict(float)
    for placed in parts:
        engine_id = whole.lane(placed).partition(":")[0]
        shown[engine_id, placed.args["step"], placed.args.get("layer", -1), placed.event["name"]] += placed.args["ns"]
    assert shown.items() <= stored.items()
    assert len(stored) * 0.95 < len(shown)


def test_counters_hold_what_the_steps_say(whole: Trace, fleet: list[Engine]) -> None:
    """Batch, waiting, tokens and KV cache change at the begin of steps, and are zero while an engine is empty."""
    series: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    for event in whole.counters:
        for name, value in event["args"].items():
            series[event["name"], name].append((whole.base_ns + round(event["ts"] * 1000), value))
    for engine in fleet:
        for counter, name, field in (
            ("waiting", "requests", "waiting"),
            ("tokens", "prefill", "prefill_tokens"),
            ("tokens", "decode", "decode_tokens"),
        ):
            values = series[f"{engine.engine_id}: {counter}", name]
            begins = {step.begin_ns: getattr(step, field) for step in engine.stored}
            assert begins.items() <= dict(values).items()
            zeros = [(at_ns, value) for at_ns, value in values if at_ns not in begins]
            assert all(value == 0 for _, value in zeros)
            pauses = [
                last.end_ns
                for last, step in zip(engine.stored, engine.stored[1:], strict=False)
                if step.number == last.number + 1 and step.begin_ns - step.idle_ns > last.end_ns
            ]
            assert [at_ns for at_ns, _ in zeros] == pauses
        assert {value for _, value in series[f"{engine.engine_id}: KV cache", "percent"]} == {50}
    assert sum(at_ns == 0 for values in series.values() for at_ns, _ in values) == 0


def test_arrows_lead_from_stages_to_their_first_and_last_step(whole: Trace, fleet: list[Engine]) -> None:
    """Each prefill and decode whose steps are stored has one arrow: into its first step, out of its last."""
    stored = {(engine.engine_id, step.number) for engine in fleet for step in engine.stored}
    expected = {}
    for placed in whole.slices("stage"):
        if "engine" in placed.args:
            ends = [placed.args["first_step"], placed.args["last_step"]]
            steps = [number for number in dict.fromkeys(ends) if (placed.args["engine"], number) in stored]
            if steps:
                expected[id(placed)] = steps
    found = {}
    for start, *steps in whole.flows.values():
        found[id(start)] = [step.args["step"] for step in steps]
        assert {whole.lane(step).partition(":")[0] for step in steps} == {start.args["engine"]}
        assert {step.event["cat"] for step in steps} == {"step"}
    assert found == expected
    assert len(found) > 100


def test_first_tokens_and_worker_events_are_instants(whole: Trace, served: Served) -> None:
    """A first token lies in the lane of its request; a crash, a stall and drops belong to the process."""
    tokens = [event for event in whole.instants if event["name"] == "first token"]
    assert len(tokens) == len(served) + 1
    assert {event["s"] for event in tokens} == {"t"}
    slices = {placed.args["span_id"]: placed for placed in whole.slices("request")}
    times = Counter((event["tid"], round(event["ts"] * 1000)) for event in tokens)
    for _, request in served:
        placed = slices[request.span_id.hex()]
        assert times[placed.event["tid"], placed.begin_ns + min(request.ttft_ns, request.e2e_ns)] >= 1
    happened = {event["name"]: event for event in whole.instants if event["cat"] == "worker"}
    sent = perfetto_traffic.events(served[3][1].trace_id)
    assert set(happened) == {event.name for event in sent}
    for event in sent:
        found = happened[event.name]
        assert found["s"] == "p"
        assert whole.base_ns + round(found["ts"] * 1000) == event.start_ns // 1000 * 1000
        assert whole.processes[found["pid"]] == f"vllm · {event.instance}"
    assert happened[attributes.EVENT_CRASH]["args"]["open_requests"] == 2
    assert happened[attributes.EVENT_CRASH]["args"]["open_trace_ids"] == served[3][1].trace_id.hex()


def test_spans_of_others_have_lanes_of_their_own(whole: Trace, served: Served) -> None:
    """A child lies in its parent; one that outlives it, and one whose parent is missing, have lanes of their own."""
    found = {placed.event["name"]: placed for placed in whole.slices("span")}
    sent = perfetto_traffic.other_spans(served[0][1])
    assert len(found) == len(whole.slices("span")) == len(sent)
    for _, _, span in sent:
        placed = found[span.name.replace("\t", " ")]
        assert whole.base_ns + placed.begin_ns == span.start_time_unix_nano
        assert whole.base_ns + placed.end_ns == span.end_time_unix_nano
        assert whole.process(placed) == "shop · web-1"
        assert placed.args | {"db.system": "postgresql", "retries": 2, "share": 0.5, "cached": False} == placed.args
    parents = {name: placed.parent.event["name"] if placed.parent else None for name, placed in found.items()}
    assert parents == {
        "POST /cart": None,
        "select": "POST /cart",
        "call model": "POST /cart",
        "connect": "call model",
        "write log": None,
        'of a lost parent  "x"': None,
    }


def test_what_sticks_out_is_cut_and_says_so(whole: Trace) -> None:
    """Stages that leave their request or overlap are cut; as measured they stay in the arguments."""
    request, _ = perfetto_traffic.aborted()
    (placed,) = (found for found in whole.slices("request") if found.args["trace_id"] == request.trace_id.hex())
    assert placed.args["outcome"] == "client_disconnect"
    assert whole.process(placed) == "chat · front-0"
    assert [
        (stage.event["name"], stage.wall_ns, stage.args["wall_ns"], stage.args.get("clipped_ns", 0))
        for stage in children(placed, whole)
    ] == [
        ("receive", 300_001, 350_001, 50_000),
        ("queue", 40_000_000, 40_070_007, 70_007),
        ("respond", 2_000_000, 2_090_000, 90_000),
    ]
    assert placed.args["stages_without_length"] == {"prefill": 0}


def test_a_request_that_only_its_engine_traced_is_there_once(whole: Trace) -> None:
    """Its stages are those that the engine's latencies give, and its span is not shown again."""
    (placed,) = (found for found in whole.slices("request") if found.args["trace_id"] == "ee" * 16)
    assert placed.wall_ns == 900_000_000
    assert [(stage.event["name"], stage.wall_ns) for stage in children(placed, whole)] == [
        ("queue", 100_000_000),
        ("prefill", 200_000_000),
        ("decode", 600_000_000),
    ]


def test_one_trace_brings_its_steps_and_who_shared_them(served: Served, fleet: list[Engine]) -> None:
    """The steps are those from its first to its last; others that took part in one of them are there, greyed."""
    engine, request = served[5]
    found = export("--trace", request.trace_id.hex()[:8])
    stages = [stage for stage in request.stages if attributes.STEP_FIRST in stage.extra]
    first = min(int(stage.extra[attributes.STEP_FIRST]) for stage in stages)
    last = max(int(stage.extra[attributes.STEP_LAST]) for stage in stages)
    assert [placed.args["step"] for placed in found.slices("step")] == list(range(first, last + 1))
    (own,) = found.slices("request")
    assert own.args["trace_id"] == request.trace_id.hex()
    sharing = {
        other.trace_id.hex()
        for their, other in served
        if their is engine and other is not request
        for stage in other.stages
        if stage.extra
        and int(stage.extra[attributes.STEP_FIRST]) <= last
        and int(stage.extra[attributes.STEP_LAST]) >= first
    }
    others = [placed for placed in found.slices("other") if placed.parent is None]
    assert {placed.args["trace_id"] for placed in others} == sharing
    assert len(others) == len(sharing) > 3
    assert {found.lane(placed).rpartition(" ")[0] for placed in others} == {"others in the batch"}
    assert {placed.event["cname"] for placed in found.slices("other")} == {"grey"}
    assert found.document["metadata"]["trace_id"] == request.trace_id.hex()
    assert len(found.flows) == len(stages)


def test_a_trace_shows_spans_of_others_once(served: Served) -> None:
    """The caller's spans stand beside the request; a step and a trace without requests can be exported too."""
    found = export("--trace", served[0][1].trace_id.hex())
    assert len(found.slices("span")) == len(perfetto_traffic.other_spans(served[0][1]))
    engine, number = served[0][0], 40
    step = export("--trace", (engine.seed << 32 | number).to_bytes(16, "big").hex())
    assert [placed.args["step"] for placed in step.slices("step")] == [number]
    members = {
        request.trace_id.hex()
        for their, request in served
        if their is engine
        for stage in request.stages
        if stage.extra and int(stage.extra[attributes.STEP_FIRST]) <= number <= int(stage.extra[attributes.STEP_LAST])
    }
    assert {placed.args["trace_id"] for placed in step.slices("other") if placed.parent is None} == members
    assert step.slices("request") == []


def test_a_request_that_a_stalled_engine_holds_can_be_exported() -> None:
    """It has no request span yet: what is known up to now is there, with the steps it took part in."""
    found = export("--trace", "5a" * 16)
    root, decode = found.slices("snapshot")
    assert (root.event["name"], decode.event["name"]) == ("POST", "decode")
    assert decode.parent is root
    assert [placed.args["step"] for placed in found.slices("step")] == list(range(3, 10))
    assert found.slices("request") == []
    assert found.slices("other") != []


def test_filters_choose_requests_and_steps() -> None:
    """With --instance only this worker's requests, steps and events are there."""
    found = export(*WINDOW, "--instance", "engine-b.host")
    assert {found.process(placed) for placed in (*found.slices("request"), *found.slices("step"))} == {
        "vllm · engine-b.host"
    }
    assert [event["name"] for event in found.instants if event["cat"] == "worker"] == [attributes.EVENT_DROPS]


def test_what_is_beyond_the_limits_is_told(capsys: Capture, served: Served, fleet: list[Engine]) -> None:
    """The earliest requests and steps are kept; a note and the file say how many are left out and what to do."""
    found = export(*WINDOW, "-n", "10", "--steps", "15")
    assert len(found.slices("request")) == 10
    assert len(found.slices("step")) == 15
    earliest = sorted(
        [request.start_ns for _, request in served] + [perfetto_traffic.BEGIN_NS + n for n in (5_000_000, 20_000_000)]
    )
    assert sorted(found.base_ns + placed.begin_ns for placed in found.slices("request")) == earliest[:10]
    requests, steps = found.document["metadata"]["left_out"]
    assert requests.startswith(
        f"{len(served) - 8:,} of {len(served) + 2:,} requests, those that began after 2026-11-29T12"
    )
    assert "engine steps: raise --steps" in steps
    noted = capsys.readouterr().err
    assert "tailspan: 10 requests, 15 steps, " in noted
    assert f"tailspan: left out: {requests}\n" in noted
    assert f"tailspan: left out: {steps}\n" in noted
    (others,) = export("--trace", served[5][1].trace_id.hex(), "-n", "2").document["metadata"]["left_out"]
    assert others == "requests beyond the earliest 2 that shared its steps: raise --limit"


def test_pages_do_not_change_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the pages are, requests, steps, layers and arrows are the same."""

    def content(trace: Trace) -> list[tuple[object, ...]]:
        return sorted(
            (event["ph"], event["name"], event["ts"], json.dumps(event.get("args"), sort_keys=True))
            for event in trace.document["traceEvents"]
            if event["ph"] != "M"
        )

    expected = content(export(*WINDOW))
    monkeypatch.setattr(perfetto_records, "STEPS_PER_PAGE", 7)
    monkeypatch.setattr(perfetto, "REQUESTS_PER_PAGE", 5)
    assert content(export(*WINDOW)) == expected


def test_a_name_decides_how_the_file_is_packed(capsys: Capture, served: Served) -> None:
    """Plain, packed and standard output hold the same trace; without -o there is a default name; no part is left."""
    trace_id = served[5][1].trace_id.hex()
    plain = export("--trace", trace_id, output="a.json").document
    assert export("--trace", trace_id, output="b.json.gz").document == plain
    assert main(["export", "--perfetto", "--trace", trace_id]) == 0
    assert read_trace(Path("tailspan-trace.json.gz")).document == plain
    assert "; open tailspan-trace.json.gz at https://ui.perfetto.dev" in capsys.readouterr().err
    assert main(["export", "--perfetto", "--trace", trace_id, "-o", "-"]) == 0
    assert check_trace(capsys.readouterr().out).document == plain
    assert sorted(path.name for path in Path().iterdir()) == ["a.json", "b.json.gz", "tailspan-trace.json.gz"]


def test_an_empty_window_is_an_empty_trace(capsys: Capture) -> None:
    """Where nothing is there, the file is valid and empty, and a note says when there is something."""
    found = export("--since", "2026-11-29T10:00Z", "--until", "2026-11-29T11:00Z")
    assert found.document["traceEvents"] == []
    noted = capsys.readouterr().err
    assert "tailspan: no requests between 2026-11-29 10:00:00 and 2026-11-29 11:00:00 UTC; there are" in noted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "x.json"], "export needs to know the format. Add --perfetto"),
        (["--perfetto", "--trace", "abab"], "'abab' is too short for a trace id. Give at least 6"),
        (["--perfetto", "--trace", "ba" * 16], f"there is no trace or request '{'ba' * 16}'. List some"),
        (["--perfetto", "--trace", "ba" * 16, "--since", "1h"], "--trace and --since do not go together. A trace"),
        (["--perfetto", "--since", "yesterday"], "--since 'yesterday' is neither a duration nor a time. Use"),
        (["--perfetto", *WINDOW, "-o", "no/such/folder.json"], "cannot write no/such/folder.json: No such file"),
        (["--perfetto", *WINDOW, "-o", "."], "cannot write .: it is a directory. Name a file with -o"),
        (["--perfetto", "-n", "0"], "Invalid value for '-n' / '--limit': 0 is not in the range"),
        (["--perfetto", "--url", "http://127.0.0.1:9"], "ClickHouse is not reachable at http://127.0.0.1:9."),
    ],
)
def test_a_mistake_is_one_line(capsys: Capture, arguments: list[str], message: str) -> None:
    """Exit code 2, one line that says what to do, and no file."""
    assert main(["export", *arguments]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith(f"tailspan: error: {message}")
    assert found.err.count("\n") == 1
    assert list(Path().iterdir()) == []
