"""Which traces a destination with `sample` gets, read back from an embedded ClickHouse."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import clickhouse_connect
import grpc
import pytest
from clickhouse_connect.driver.client import Client
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tailspan import attributes
from tailspan_collector.embedded import EmbeddedSink, Engine
from tailspan_collector.forward import Forwarder, from_table, sampler, slices, weights
from tailspan_collector.framing import write_varint
from tailspan_collector.http import HttpServer
from tailspan_collector.metrics import Metrics
from tailspan_collector.signals import TRACES
from tests.support.destinations import GrpcDestination, count, wait_for
from tests.support.new_database import make_database
from tests.support.otlp_messages import comparable, single_spans, string

ERROR, OK = 2, 1
MS = 1_000_000
Start = Callable[..., Forwarder]


class Store:
    """An embedded ClickHouse with its read-only interface."""

    def __init__(self, engine: Engine, client: Client) -> None:
        self.engine, self.client = engine, client
        self.is_down = False
        self._sink = EmbeddedSink(engine)

    def insert(self, *spans: Span, service: str = "shop") -> None:
        """Store spans as the collector does, in one insert."""
        body = request_of(*spans, service=service).SerializeToString()
        self._sink.insert(TRACES, write_varint(len(body)) + body, os.urandom(8).hex())

    def connect(self) -> Client:
        """Return the client, unless ClickHouse is to be down."""
        if self.is_down:
            raise ConnectionError("ClickHouse is down")
        return self.client


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A database that the tests of this module share; each looks only at what comes after its start."""
    with Engine(make_database(tmp_path_factory.mktemp("sampling") / "clickhouse")) as engine:
        http = HttpServer(engine, socket.create_server(("127.0.0.1", 0)))
        http.start()
        client = clickhouse_connect.get_client(dsn=f"http://127.0.0.1:{http.port}", autogenerate_session_id=False)
        yield Store(engine, client)
        client.close()
        http.stop()


@pytest.fixture
def start(store: Store, tmp_path: Path, metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start sampled destinations that look every 0.2 s; returns once they have taken their first place."""
    monkeypatch.setattr(sampler, "TICK_S", 0.2)
    started: list[Forwarder] = []

    def start_one(endpoint: str, **sample: Any) -> Forwarder:
        destination = from_table({"endpoint": endpoint, "name": "apm", "sample": {"settle": 0, **sample}})
        forwarder = Forwarder(destination, {}, store.connect, metrics, tmp_path)
        started.append(forwarder)
        forwarder.start()
        wait_for((tmp_path / "sampler-apm.json").exists)
        return forwarder

    yield start_one
    for forwarder in started:
        forwarder.stop(0.0)


def request_of(*spans: Span, service: str = "shop") -> ExportTraceServiceRequest:
    """Return an export request."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.append(string("service.name", service))
    scope = resource.scope_spans.add()
    scope.scope.name = "test"
    scope.spans.extend(spans)
    return request


def span(
    trace_id: bytes, name: str, *, parent: bytes = b"", ms: int = 1, status: int = OK, ago_s: float = 0, **fields: Any
) -> Span:
    """Return a span that ended just now, or so many seconds ago."""
    end = time.time_ns() - int(ago_s * 1e9)
    made = Span(trace_id=trace_id, span_id=os.urandom(8), parent_span_id=parent, name=name, kind=1, **fields)
    made.start_time_unix_nano, made.end_time_unix_nano = end - ms * MS, end
    made.status.code = status  # type: ignore[assignment]
    return made


def trace_ids(number: int, *, kept_by: float | None = None) -> list[bytes]:
    """Return random trace ids; with `kept_by` those that a share of that size keeps."""
    found: list[bytes] = []
    while len(found) < number:
        candidate = os.urandom(16)
        if kept_by is None or int.from_bytes(candidate[9:]) >= weights.threshold(kept_by):
            found.append(candidate)
    return found


def received(receiver: GrpcDestination) -> list[Span]:
    """Return every span that a receiver took."""
    return [
        item
        for payload in list(receiver.inbox.taken)
        for resource in ExportTraceServiceRequest.FromString(payload).resource_spans
        for scope in resource.scope_spans
        for item in scope.spans
    ]


def names(receiver: GrpcDestination) -> list[str]:
    """Return the sorted names of the spans that a receiver took."""
    return sorted(item.name for item in received(receiver))


def wait_settled(store: Store, folder: Path) -> None:
    """Wait until the sampler has worked off everything that is stored now."""
    now = store.client.query("select toUnixTimestamp(max(stored)) from tailspan.spans").result_rows[0][0]

    def is_past() -> bool:
        place = json.loads((folder / "sampler-apm.json").read_text())
        return bool(place["after"] >= now and not place["until"])

    wait_for(is_past)


def test_errors_and_slow_traces_arrive_whole(store: Store, start: Start, tmp_path: Path) -> None:
    """A trace with an error in any span, or with a slow root or request span, is sent with all its spans; no other is;
    a slow child alone does not count.
    """
    failed, slow, slow_request, fine, slow_child = trace_ids(5)
    with GrpcDestination() as receiver:
        start(receiver.url, errors=True, slower_than="2s")
        request = span(slow_request, "request", parent=b"12345678", ms=2500)
        request.attributes.append(string(attributes.ROLE, attributes.ROLE_REQUEST))
        store.insert(
            span(failed, "failed root"), span(failed, "failed child", parent=b"12345678", status=ERROR),
            span(slow, "slow root", ms=2001), span(slow, "slow's child", parent=b"12345678"),
            request,
            span(fine, "fine", ms=2000),
            span(slow_child, "slow child", parent=b"12345678", ms=5000),
        )  # fmt: skip
        wait_settled(store, tmp_path)
        assert names(receiver) == ["failed child", "failed root", "request", "slow root", "slow's child"]


def test_spans_are_rebuilt_field_by_field(store: Store, start: Start, tmp_path: Path) -> None:
    """A trace that a rule names arrives as it was sent, with attributes, events, links, scope and resource."""
    (trace_id,) = trace_ids(1)
    rich = span(trace_id, "rich", status=ERROR, trace_state="a=1", flags=257)
    rich.attributes.append(string("text", "ünï"))
    rich.attributes.add(key="number").value.int_value = -5
    rich.attributes.add(key="list").value.array_value.values.add().bool_value = True
    rich.attributes.add(key=attributes.WEIGHT).value.double_value = 8
    rich.events.add(name="boom", time_unix_nano=rich.start_time_unix_nano).attributes.append(string("why", "?"))
    rich.links.add(trace_id=os.urandom(16), span_id=os.urandom(8), trace_state="b=2")
    plain = span(trace_id, "plain", parent=rich.span_id)
    with GrpcDestination() as receiver:
        start(receiver.url, errors=True)
        store.insert(rich, plain)
        (payload,) = receiver.inbox.wait(1)
    got = ExportTraceServiceRequest.FromString(payload)
    assert len(got.resource_spans) == len(got.resource_spans[0].scope_spans) == 1
    sent = request_of(rich, plain)
    assert sorted(map(comparable, single_spans(got))) == sorted(map(comparable, single_spans(sent)))


def test_late_spans_follow_and_none_comes_twice(store: Store, start: Start, tmp_path: Path) -> None:
    """Spans of a wanted trace that come later follow alone; a trace that becomes wanted by a late span brings its
    earlier spans along; every span is sent once.
    """
    wanted, late, never = trace_ids(3)
    with GrpcDestination() as receiver:
        start(receiver.url, errors=True)
        store.insert(span(wanted, "w1", status=ERROR), span(late, "l1", ago_s=30), span(never, "n1"))
        wait_settled(store, tmp_path)
        assert names(receiver) == ["w1"]
        store.insert(span(wanted, "w2", parent=b"12345678"), span(late, "l2"), span(never, "n2"))
        wait_settled(store, tmp_path)
        assert names(receiver) == ["w1", "w2"]
        store.insert(span(late, "l3", status=ERROR), span(never, "n3"))
        wait_settled(store, tmp_path)
        assert names(receiver) == ["l1", "l2", "l3", "w1", "w2"]
        store.insert(span(late, "l4", ms=7_200_000), span(wanted, "w3"))
        wait_settled(store, tmp_path)
        assert names(receiver) == ["l1", "l2", "l3", "l4", "w1", "w2", "w3"]


def test_a_share_is_kept_by_trace_id_and_weighted(store: Store, start: Start, tmp_path: Path) -> None:
    """A share takes the traces whose id says so, the same in every collector, and says how many each stands for; what
    a rule keeps as well weighs as before.
    """
    ids = trace_ids(200)
    kept = {trace_id for trace_id in ids if int.from_bytes(trace_id[9:]) >= weights.threshold(0.25)}
    failed = sorted(kept)[0]
    explicit = os.urandom(16)
    with GrpcDestination() as receiver:
        start(receiver.url, errors=True, share=0.25)
        store.insert(*(span(trace_id, "root", status=ERROR if trace_id == failed else OK) for trace_id in ids))
        ours = span(sorted(kept)[1], "ours")
        ours.attributes.append(string(attributes.ROLE, attributes.ROLE_REQUEST))
        store.insert(ours, span(explicit, "explicit", trace_state="ot=rv:ffffffffffffff"))
        store.insert(span(sorted(set(ids) - kept)[0], "explicit no", trace_state="x=1,ot=rv:00000000000000"))
        wait_settled(store, tmp_path)
        spans = received(receiver)
    assert {item.trace_id for item in spans} == kept | {explicit}
    assert {item.trace_state for item in spans if item.trace_id not in (failed, explicit)} == {"ot=th:c"}
    assert [item.trace_state for item in spans if item.trace_id == failed] == [""]
    assert [item.trace_state for item in spans if item.trace_id == explicit] == ["ot=th:c;rv:ffffffffffffff"]
    weighed = {item.name: item.attributes for item in spans if any(a.key == attributes.WEIGHT for a in item.attributes)}
    assert list(weighed) == ["ours"]
    assert next(a.value.double_value for a in weighed["ours"] if a.key == attributes.WEIGHT) == 4


def test_many_pages_arrive_whole(store: Store, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More traces than a page holds, and requests of more than one size limit, arrive complete and once."""
    monkeypatch.setattr(slices, "PAGE_SPANS", 300)
    monkeypatch.setattr("tailspan_collector.forward.traces.REQUEST_BYTES", 20_000)
    with GrpcDestination() as receiver:
        start(receiver.url, errors=True)
        sent = []
        for trace_id in trace_ids(500):
            sent += [span(trace_id, "root", status=ERROR), span(trace_id, "child", parent=b"12345678")]
        (long_trace,) = trace_ids(1)
        sent += [span(long_trace, "many", status=ERROR) for _ in range(1000)]
        store.insert(*sent)
        wait_settled(store, tmp_path)
        got = [item.span_id for item in received(receiver)]
        assert max(map(len, receiver.inbox.taken)) < 21_000
    assert sorted(got) == sorted(item.span_id for item in sent)


def test_a_trace_that_the_destination_cannot_take_does_not_block_the_others(
    store: Store, start: Start, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that always fails is given up on the evidence that later ones are taken, and the place moves on."""
    monkeypatch.setattr("tailspan_collector.forward.traces.REQUEST_BYTES", 1)
    monkeypatch.setattr("tailspan_collector.forward.window.MOST_OVERTAKEN", 2)

    def behave(payload: bytes, context: grpc.ServicerContext) -> bytes:
        if b"poison" in payload:
            context.abort(grpc.StatusCode.INTERNAL, "crashed")
        return b""

    with GrpcDestination(behave) as receiver:
        start(receiver.url, errors=True)
        store.insert(*(span(*trace_ids(1), name, status=ERROR) for name in ("poison", "good")))
        labels = {"destination": "apm", "signal": "traces", "reason": "grpc_internal"}
        inserted, deadline = 1, time.monotonic() + 90
        while not count(metrics, "forward_dropped_requests_total", **labels):
            assert time.monotonic() < deadline
            store.insert(span(*trace_ids(1), "good", status=ERROR))
            inserted += 1
            time.sleep(0.5)
        wait_for(lambda: names(receiver) == ["good"] * inserted)


def test_a_restart_goes_on_and_an_outage_loses_nothing(
    store: Store, start: Start, tmp_path: Path, metrics: Metrics
) -> None:
    """What is stored while no process samples, while ClickHouse cannot be asked and while the destination is down is
    sent later, once.
    """
    with GrpcDestination() as receiver:
        url, port = receiver.url, receiver.port
        forwarder = start(url, errors=True)
        store.insert(span(*trace_ids(1), "first", status=ERROR))  # type: ignore[misc]
        wait_settled(store, tmp_path)
        forwarder.stop(5)
        assert names(receiver) == ["first"]
    store.insert(span(*trace_ids(1), "while stopped", status=ERROR))  # type: ignore[misc]
    store.is_down = True
    start(url, errors=True)
    store.insert(span(*trace_ids(1), "while down", status=ERROR))  # type: ignore[misc]
    time.sleep(0.5)
    store.is_down = False
    wait_for(lambda: count(metrics, "forward_failures_total", destination="apm", signal="traces") >= 1)
    with GrpcDestination(port=port) as receiver:
        wait_for(lambda: len(received(receiver)) == 2)
        wait_settled(store, tmp_path)
        assert names(receiver) == ["while down", "while stopped"]


def test_an_insert_that_is_under_way_is_waited_for(store: Store) -> None:
    """Spans have the time at which their insert began: the sampler does not pass it before the insert has ended."""
    horizon = (Path(sampler.__file__).parent / "sql" / "horizon.sql").read_text(encoding="utf-8")
    parameters = {"after": 0, "most_behind_s": 1000, "settle_s": 0, "slice_s": 10_000}
    handle = store.engine.connect()
    began = int(time.time())
    rows = "select [] from numbers(4) where sleepEachRow(1) = 0 settings max_block_size = 1"
    thread = threading.Thread(target=handle.query, args=(f"insert into tailspan.otlp_traces {rows}",))
    thread.start()
    time.sleep(2.5)
    now, _, until = store.client.query(horizon, parameters=parameters).result_rows[0]
    thread.join()
    handle.close()
    assert now >= began + 2
    assert until < began
    _, _, later = store.client.query(horizon, parameters=parameters).result_rows[0]
    assert later > until + 1


def test_what_is_too_long_ago_is_left_out_and_told(
    store: Store, start: Start, tmp_path: Path, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    """A place further back than the bound is moved up, with a count and the times in the log."""
    (tmp_path / "sampler-apm.json").write_text(json.dumps({"after": int(time.time()) - 90_000, "until": 0, "sent": ""}))
    with GrpcDestination() as receiver:
        start(receiver.url, errors=True)
        labels = {"destination": "apm", "signal": "traces", "reason": "bound"}
        wait_for(lambda: count(metrics, "forward_dropped_requests_total", **labels) >= 1)
    assert "are further behind than allowed" in caplog.text
