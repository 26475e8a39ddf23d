"""What was acknowledged is stored exactly once, whatever happens to the collector."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from tests.collector.conftest import CollectorFactory
from tests.support.collector import RunningCollector, exporter, wait_until
from tests.support.otlp_messages import request_with_stages
from tests.support.spools import open_spool

SPANS_PER_REQUEST = 2 * 3


class Sender(threading.Thread):
    """A client that sends new requests without pause and sends one again until it is acknowledged, as an SDK does."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.acknowledged = 0
        self.sent_again = 0
        self.stop = threading.Event()

    def run(self) -> None:
        with grpc.insecure_channel(f"127.0.0.1:{self.port}", [("grpc.max_reconnect_backoff_ms", 100)]) as channel:
            export = exporter(channel)
            while not self.stop.is_set():
                request = request_with_stages(2)
                while not self._is_acknowledged(export, request):
                    self.sent_again += 1
                    time.sleep(0.02)
                self.acknowledged += 1

    @staticmethod
    def _is_acknowledged(export: object, request: bytes) -> bool:
        try:
            export(request, timeout=10)  # type: ignore[operator]
        except grpc.RpcError:
            return False
        return True


def totals(collector: RunningCollector) -> tuple[int, ...]:
    """Return spans, distinct ones, those of both rollups and of the trace index, those sampled or not chosen for it."""
    return (
        *collector.query("select count(), uniqExact(trace_id, span_id) from tailspan.spans")[0],
        collector.query("select sum(count) from tailspan.stage_minutes where stage != 'unattributed'")[0][0],
        collector.query("select sum(count) from tailspan.stage_hours where stage != 'unattributed'")[0][0],
        collector.query("select sum(span_count) from tailspan.traces")[0][0],
        collector.query("select countIf(sipHash64(trace_id) % 4096 >= 256) from tailspan.spans")[0][0]
        + collector.query("select count() from tailspan.spans_sample")[0][0],
    )


def check_totals(collector: RunningCollector, spans: int) -> None:
    """Check that every table has `spans` spans, once it does: an insert reaches the rest a moment after `spans`."""
    expected = (spans,) * 6
    assert wait_until(lambda: totals(collector), lambda found: found == expected, timeout=20) == expected


def test_acknowledged_spans_survive_kill_9_exactly_once(start_collector: CollectorFactory) -> None:
    """Killed three times under load, the collector has every acknowledged span once in table, rollup and index."""
    collector = start_collector("--batch-seconds", "0.1")
    senders = [Sender(collector.otlp_port) for _ in range(4)]
    for sender in senders:
        sender.start()
    for _ in range(3):
        time.sleep(random.uniform(0.4, 0.8))
        collector.kill9()
        collector.start()
    time.sleep(0.3)
    for sender in senders:
        sender.stop.set()
    for sender in senders:
        sender.join(60)
        assert not sender.is_alive()
    assert any(sender.sent_again for sender in senders)
    expected = SPANS_PER_REQUEST * sum(sender.acknowledged for sender in senders)
    collector.wait_rows(expected)
    collector.restart()  # whatever was still on its way is stored before the process ends
    check_totals(collector, expected)


CRASHES_AFTER_INSERT = """
import os, sys
from pathlib import Path
from tailspan_collector.embedded import EmbeddedSink, Engine, Folder
from tailspan_collector.metrics import Metrics
from tailspan_collector.signals import TRACES
from tailspan_collector.spool import Spool
from tailspan_collector.writer import Writer
from tailspan_schemas import migrations

class Crashing(EmbeddedSink):
    def insert(self, signal, body, token):
        super().insert(signal, body, token)
        os._exit(9)

folder = Folder(Path(sys.argv[1]))
engine = Engine(folder.path / "clickhouse")
migrations.apply(engine)
metrics = Metrics()
spool = Spool(folder.path / "spool" / "traces", TRACES, 1 << 30, 3600.0, metrics)
for path in sys.argv[2:]:
    spool.append(Path(path).read_bytes())
Writer(spool, Crashing(engine), 1 << 24, 0.01, metrics).start()
import time; time.sleep(30)
"""


def test_a_batch_stored_but_not_committed_is_not_stored_twice(
    tmp_path: Path, start_collector: CollectorFactory
) -> None:
    """A crash between the insert and the commit makes the next process insert the batch again, without effect."""
    paths = []
    for number in range(3):
        paths.append(tmp_path / f"request-{number}")
        paths[-1].write_bytes(request_with_stages(2))
    for attempt in range(2):
        crashed = subprocess.run(
            [
                sys.executable,
                "-c",
                CRASHES_AFTER_INSERT,
                str(tmp_path / "data"),
                *map(str, paths if not attempt else ()),
            ],
            check=False,
        )
        assert crashed.returncode == 9
    collector = start_collector()
    collector.export(request_with_stages(1))
    collector.wait_rows(3 * SPANS_PER_REQUEST + 3)
    check_totals(collector, 3 * SPANS_PER_REQUEST + 3)


def test_a_backlog_is_worked_off_after_the_start(tmp_path: Path, start_collector: CollectorFactory) -> None:
    """A collector that finds requests in its spool stores them while it already takes new ones."""
    spool = open_spool(tmp_path / "data" / "spool" / "traces")
    for _ in range(200):
        spool.append(request_with_stages(2))
    spool.close()
    collector = start_collector("--batch-bytes", "20000")
    collector.export(request_with_stages(2))
    assert collector.wait_rows(201 * SPANS_PER_REQUEST) == 201 * SPANS_PER_REQUEST


def test_a_stop_stores_what_was_received(start_collector: CollectorFactory) -> None:
    """SIGTERM ends the process with code 0 and nothing acknowledged is left unstored."""
    collector = start_collector("--batch-seconds", "30")
    collector.export(*(request_with_stages(2) for _ in range(20)))
    begin = time.monotonic()
    assert collector.stop() == 0
    assert time.monotonic() - begin < 15
    collector.start()
    check_totals(collector, 20 * SPANS_PER_REQUEST)


def test_the_same_request_sent_again_is_stored_once(start_collector: CollectorFactory) -> None:
    """An SDK that got no answer sends the same bytes again, also to a restarted collector; they are stored once."""
    collector = start_collector("--batch-seconds", "0.05")
    request = request_with_stages(2)
    collector.export(request, request)
    collector.wait_rows(SPANS_PER_REQUEST)
    collector.kill9()
    collector.start()
    collector.export(request, request_with_stages(2))
    collector.wait_rows(2 * SPANS_PER_REQUEST)
    check_totals(collector, 2 * SPANS_PER_REQUEST)


def test_poison_is_kept_apart(start_collector: CollectorFactory) -> None:
    """A request that ClickHouse cannot decode is in the reject table with its bytes; those beside it are stored."""
    collector = start_collector("--batch-seconds", "0.5")
    poison = b"\x0a\x07\x12\x05\x12\x03\x0a\x64x"  # a trace id of 100 bytes in a span of 3
    collector.export(*(request_with_stages(2) for _ in range(5)), poison, *(request_with_stages(2) for _ in range(5)))
    collector.wait_rows(10 * SPANS_PER_REQUEST)
    collector.wait_rows(1, "tailspan.rejects")
    check_totals(collector, 10 * SPANS_PER_REQUEST)
    rows = collector.query("select signal, hex(payload), code > 0, reason != '' from tailspan.rejects")
    assert rows == [("traces", poison.hex().upper(), 1, 1)]
    collector.restart()
    check_totals(collector, 10 * SPANS_PER_REQUEST)
    assert collector.query("select count() from tailspan.rejects") == [(1,)]


def status_of(export: Callable[..., bytes], request: bytes) -> grpc.StatusCode | None:
    """Return the status with which a request was refused, None if it was taken."""
    try:
        export(request, timeout=10)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()  # type: ignore[attr-defined]
        return code
    return None


def test_damaged_requests_never_harm_the_others(start_collector: CollectorFactory) -> None:
    """Requests with flipped, lost and added bytes are stored, refused or rejected; all intact ones are stored."""
    collector = start_collector("--batch-seconds", "0.3")
    chance = random.Random(5)
    intact = 0
    with grpc.insecure_channel(f"127.0.0.1:{collector.otlp_port}") as channel:
        export = exporter(channel)
        for number in range(60):
            request = bytearray(request_with_stages(2, "intact" if number % 3 == 0 else "damaged"))
            if number % 3 == 0:
                intact += 1
            else:
                for _ in range(chance.randint(1, 4)):
                    request[chance.randrange(len(request))] = chance.randrange(256)
            refused = grpc.StatusCode.INVALID_ARGUMENT if number % 3 else None
            assert status_of(export, bytes(request)) in (None, refused)
    query = "select uniqExact(span_id), count() from tailspan.spans where service = 'intact'"
    expected = [(intact * SPANS_PER_REQUEST, intact * SPANS_PER_REQUEST)]
    assert wait_until(lambda: collector.query(query), lambda rows: rows == expected, 30) == expected
    assert collector.stop() == 0
