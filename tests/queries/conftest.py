"""One ClickHouse for all tests of the queries, filled with traffic whose times are known."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tailspan import attributes
from tailspan.agent import histogram
from tailspan_queries.catalog import Query
from tailspan_queries.client import Client, Result, connect
from tailspan_queries.times import Window
from tests.queries import engine_traffic, layer_traffic, ledger_traffic, sampled, traffic
from tests.support.collector import RunningCollector, wait_until

DAY_NS = 24 * 60 * traffic.MINUTE_NS


@pytest.fixture(scope="session")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCollector]:
    """A running collector."""
    with RunningCollector(tmp_path_factory.mktemp("queries") / "data", "--batch-seconds", "0.2") as running:
        yield running


@pytest.fixture(scope="session")
def bursty() -> list[traffic.Request]:
    """Four thousand requests of two models, in bursts."""
    return traffic.bursty(4000)


@pytest.fixture(scope="session")
def pair() -> tuple[traffic.Request, traffic.Request]:
    """Two requests of one trace that overlap in time and have different stages; a day after the bursts."""
    trace_id = b"\xab" * 16
    caller = b"\x0c" * 8
    first = traffic.Request(
        trace_id,
        b"\x01" * 8,
        traffic.BEGIN_NS + DAY_NS,
        "pair",
        "chat",
        "worker-0",
        (
            traffic.Stage("receive", 300_000, 250_000),
            traffic.Stage("queue", 4_100_000_000),
            traffic.Stage(
                "decode",
                1_150_000_000,
                1_100_000_000,
                460_000_000,
                {
                    attributes.ENGINE_ID: "engine-1",
                    attributes.STEP_FIRST: 2,
                    attributes.STEP_LAST: 21,
                    attributes.ITL_HISTOGRAM: histogram.encode([20_000_000] * 90 + [80_000_000] * 10),
                },
            ),
            traffic.Stage("respond", 1_200_000),
        ),
        gap_ns=62_000_000,
        ttft_ns=4_590_000_000,
        input_tokens=512,
        output_tokens=64,
        parent_span_id=caller,
    )
    second = traffic.Request(
        trace_id,
        b"\x02" * 8,
        traffic.BEGIN_NS + DAY_NS + 1_000_000_000,
        "pair",
        "chat",
        "worker-0",
        (traffic.Stage("queue", 500_000_000), traffic.Stage("prefill", 2_000_000_000), traffic.Stage("respond", 7)),
        gap_ns=0,
        input_tokens=9,
        failed=True,
        parent_span_id=caller,
    )
    return first, second


@pytest.fixture(scope="session")
def steps() -> list[traffic.Step]:
    """Sixty engine steps, of which the first request of `pair` takes part in number 2 to 21."""
    begin = traffic.BEGIN_NS + DAY_NS + 4_200_000_000
    return [
        traffic.Step(number, begin + number * 40_000_000, 38_000_000, 3 + number % 3, 2_000_000, (b"\xab" * 16,))
        for number in range(1, 61)
    ]


@pytest.fixture(scope="session")
def population() -> list[traffic.Request]:
    """Six thousand requests, two days after the bursts, of which only some are sent."""
    return sampled.population(6000, 2 * DAY_NS)


@pytest.fixture(scope="session")
def kept(population: list[traffic.Request]) -> list[traffic.Request]:
    """Those that are sent: the slow and the failed ones with weight 1, a tenth of the others with weight 10."""
    return sampled.sample(population)


@pytest.fixture(scope="session")
def kept_steps() -> list[traffic.Step]:
    """Engine steps of which some stand for ten."""
    begin = traffic.BEGIN_NS + 2 * DAY_NS
    return [
        traffic.Step(number, begin + number * 50_000_000, (number - 1000) * 1_000_000, number % 7, 500_000, (), 10.0)
        if number % 3
        else traffic.Step(number, begin + number * 50_000_000, (number - 1000) * 9_000_000, 8, 500_000)
        for number in range(1001, 1090)
    ]


@pytest.fixture(scope="session")
def events(kept: list[traffic.Request]) -> list[traffic.Event]:
    """A crash and a stall of one worker, drops of two."""
    return sampled.events(traffic.BEGIN_NS + 2 * DAY_NS, [request.trace_id for request in kept[:4]])


@pytest.fixture(scope="session")
def engines() -> list[engine_traffic.Engine]:
    """Five engines with continuous batching, three days after the bursts, across the end of a minute."""
    return engine_traffic.fleet(traffic.BEGIN_NS + 3 * DAY_NS + 50_000_000_000)


@pytest.fixture(scope="session")
def served(engines: list[engine_traffic.Engine]) -> list[tuple[engine_traffic.Engine, traffic.Request]]:
    """The requests of these engines."""
    return [(engine, request) for engine in engines for request in engine_traffic.requests_of(engine)]


@pytest.fixture(scope="session")
def layered() -> list[layer_traffic.LayeredEngine]:
    """Four engines with device times, four days after the bursts."""
    return layer_traffic.fleet(traffic.BEGIN_NS + 4 * DAY_NS + 10_000_000_000)


@pytest.fixture(scope="session")
def slowed() -> list[layer_traffic.LayeredEngine]:
    """An engine of the same model as the first of them, ten minutes later, with a slower layer."""
    return layer_traffic.slowed(traffic.BEGIN_NS + 4 * DAY_NS + 10 * traffic.MINUTE_NS)


@pytest.fixture(scope="session")
def steady() -> layer_traffic.LayeredEngine:
    """An engine that does not change, twenty minutes after the four."""
    return layer_traffic.steady(traffic.BEGIN_NS + 4 * DAY_NS + 20 * traffic.MINUTE_NS)


@pytest.fixture(scope="session")
def layered_requests(layered: list[layer_traffic.LayeredEngine]) -> list[traffic.Request]:
    """The requests of the four engines."""
    return [request for item in layered for request in engine_traffic.requests_of(item.engine)]


@pytest.fixture(scope="session")
def client(
    collector: RunningCollector,
    bursty: list[traffic.Request],
    pair: tuple[traffic.Request, traffic.Request],
    steps: list[traffic.Step],
    kept: list[traffic.Request],
    kept_steps: list[traffic.Step],
    events: list[traffic.Event],
    engines: list[engine_traffic.Engine],
    served: list[tuple[engine_traffic.Engine, traffic.Request]],
    layered: list[layer_traffic.LayeredEngine],
    slowed: list[layer_traffic.LayeredEngine],
    steady: layer_traffic.LayeredEngine,
    layered_requests: list[traffic.Request],
) -> Iterator[Client]:
    """A client of a ClickHouse that holds all of this."""
    spans = [span for request in (*bursty, *pair, *kept) for span in traffic.request_spans(request)]
    spans += [traffic.step_span(step, "engine-1") for step in steps]
    spans += [traffic.step_span(step, "engine-3") for step in kept_steps]
    spans += [traffic.event_span(event) for event in events]
    spans += [span for _, request in served for span in traffic.request_spans(request)]
    spans += [span for engine in engines for span in engine_traffic.step_spans(engine)]
    spans += [span for request in layered_requests for span in traffic.request_spans(request)]
    spans += [span for item in (*layered, *slowed, steady) for span in layer_traffic.spans_of(item)]
    # The same prefix as that of `pair`, to be ambiguous, and the steps of another engine with the same numbers.
    other = traffic.make_span(b"\xab" * 3 + b"\x11" * 13, b"\x09" * 8, b"", "GET /health", traffic.BEGIN_NS, 1000, {})
    spans.append(("web", "", other))
    spans += [traffic.step_span(traffic.Step(2, steps[0].start_ns, 38_000_000, 99, 0), "engine-2")]
    spans.append(ledger_traffic.entry_span(ledger_traffic.EXAMPLE, traffic.BEGIN_NS, 1))
    collector.export(*traffic.messages(spans))
    assert collector.wait_rows(len(spans)) == len(spans)
    # What views make of an insert is there a moment after its spans.
    requests = len(bursty) + len(pair) + len(kept) + len(served) + len(layered_requests)
    rolled_up = "select sum(span_count) from tailspan.stage_hours where stage = 'request'"
    assert wait_until(lambda: collector.query(rolled_up)[0][0], lambda count: count >= requests) == requests
    indexed = "select sum(span_count) from tailspan.traces"
    assert wait_until(lambda: collector.query(indexed)[0][0], lambda count: count >= len(spans)) == len(spans)
    steps_with_parts = sum(len(item.sampled) for item in (*layered, *slowed, steady))
    timed = "select uniqExact(trace_id) from tailspan.layers"
    assert wait_until(lambda: collector.query(timed)[0][0], lambda count: count >= steps_with_parts) == steps_with_parts
    client = connect(collector.url)
    yield client
    client.close()


@pytest.fixture(scope="module")
def _told() -> dict[tuple[str, str, str], Result]:
    """What the ClickHouse of a module answered."""
    return {}


@pytest.fixture
def ask_once(monkeypatch: pytest.MonkeyPatch, _told: dict[tuple[str, str, str], Result]) -> None:
    """Ask each question once in a module: a table of any width, JSON and CSV of one question read the same rows."""
    execute = Client.execute

    def remembering(client: Client, query: Query, parameters: Mapping[str, Any]) -> Result:
        key = client.url, query.sql, repr(sorted(parameters.items()))
        if key not in _told:
            _told[key] = execute(client, query, parameters)
        return _told[key]

    monkeypatch.setattr(Client, "execute", remembering)


@pytest.fixture
def commands_ask_here(client: Client, ask_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the commands to the test's ClickHouse, away from the tester's terminal."""
    monkeypatch.setenv("TAILSPAN_CLICKHOUSE_URL", client.url)
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def burst_window() -> Window:
    """A window of whole minutes that holds all bursts."""
    return Window(traffic.BEGIN_NS, traffic.BEGIN_NS + 60 * traffic.MINUTE_NS)


@pytest.fixture(scope="session")
def pair_window() -> Window:
    """A window that holds the two requests of one trace and the engine steps."""
    return Window(traffic.BEGIN_NS + DAY_NS, traffic.BEGIN_NS + DAY_NS + traffic.MINUTE_NS)


@pytest.fixture(scope="session")
def sampled_window() -> Window:
    """A window of whole minutes that holds the sampled requests, their steps and the events."""
    return Window(traffic.BEGIN_NS + 2 * DAY_NS, traffic.BEGIN_NS + 2 * DAY_NS + 60 * traffic.MINUTE_NS)


@pytest.fixture(scope="session")
def engine_window() -> Window:
    """A window of whole minutes that holds the engines with continuous batching."""
    return Window(traffic.BEGIN_NS + 3 * DAY_NS, traffic.BEGIN_NS + 3 * DAY_NS + 2 * traffic.MINUTE_NS)


@pytest.fixture(scope="session")
def layer_window() -> Window:
    """A window of whole minutes that holds the four engines with device times."""
    return Window(traffic.BEGIN_NS + 4 * DAY_NS, traffic.BEGIN_NS + 4 * DAY_NS + 3 * traffic.MINUTE_NS)


@pytest.fixture(scope="session")
def slowed_window() -> Window:
    """A window that holds the engine with a slower layer."""
    begin_ns = traffic.BEGIN_NS + 4 * DAY_NS + 10 * traffic.MINUTE_NS
    return Window(begin_ns, begin_ns + 3 * traffic.MINUTE_NS)
