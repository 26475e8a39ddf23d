"""The demo's own load on the real model, with the collector killed in the middle of it."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from tailspan_queries.demo.driver import send_load
from tailspan_queries.demo.load import Job
from tailspan_queries.demo.model import prepare_model
from tailspan_queries.demo.processes import free_ports
from tailspan_queries.demo.serve_transformers import transformers_engine
from tailspan_queries.demo.server import serving
from tailspan_queries.demo.session import warm_up
from tailspan_queries.demo.workload import plan_load
from tests.support.collector import RunningCollector

REQUESTS = 24
KILLS = 3


@pytest.mark.model
@pytest.mark.timeout(240)
def test_a_collector_killed_during_the_load_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Three kill -9 while real requests are served: each has one trace, whole, once, and in step with the client."""
    model = prepare_model(lambda _done, _text: None)
    collector = RunningCollector(tmp_path / "data", "--batch-seconds", "0.2").start()
    try:
        (port,) = free_ports(1)
        with serving(transformers_engine(), model, port, collector.otlp_port, tmp_path) as server:
            warm_up(server, ())
            stop = threading.Event()
            crashes = threading.Thread(target=keep_killing, args=(collector, stop))
            crashes.start()
            observations = send_load(Job(server.target, plan_load(REQUESTS, 3.0, 5)), (server.program,))
            stop.set()
            crashes.join()
        server.program.check_stopped()
        assert [observation.error for observation in observations if observation.error] == []
        collector.restart()  # what is acknowledged and still on its way is stored before the process ends
        check_stored_once(collector, {observation.trace_id for observation in observations})
    finally:
        collector.stop()


def keep_killing(collector: RunningCollector, stop: threading.Event) -> None:
    """Kill and start the collector a few times at random moments."""
    chance = random.Random(11)
    for _ in range(KILLS):
        if stop.wait(chance.uniform(0.8, 2.0)):
            return
        collector.kill9()
        time.sleep(chance.uniform(0.0, 0.5))
        collector.start()


def check_stored_once(collector: RunningCollector, sent: set[str]) -> None:
    """Every request sent has one root; no span is there twice; stages and remainder add up to the request."""
    roots = collector.query("select lower(hex(trace_id)), count() from tailspan.requests group by trace_id")
    assert dict(roots) == dict.fromkeys(sent, 1)
    spans, distinct, indexed = collector.query(
        "select count(), uniqExact(trace_id, span_id), (select sum(span_count) from tailspan.traces)"
        " from tailspan.spans"
    )[0]
    assert spans == distinct == indexed
    assert spans >= 8 * REQUESTS
    wrong = collector.query(
        """
        select count()
        from (select trace_id, span_id, e2e_ns, unattributed_ns from tailspan.requests) as request
        join (
            select trace_id, request_span_id, sum(wall_ns) as stages_ns
            from tailspan.stages group by trace_id, request_span_id
        ) as parts on parts.trace_id = request.trace_id and parts.request_span_id = request.span_id
        where e2e_ns != stages_ns + unattributed_ns
        """
    )
    assert wrong == [(0,)]
