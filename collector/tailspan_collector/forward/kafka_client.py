"""A Kafka topic with the encoding `otlp_proto`, as the OpenTelemetry Collector's Kafka exporter writes it.

The value of a message is one export request, its bytes as they came (on the wire `TracesData` and
`ExportTraceServiceRequest` are the same), without a key. Topics unless the URL names one: `otlp_spans`, `otlp_metrics`,
`otlp_logs`. Written with all replicas' acknowledgement; `headers` become record headers.

Source: opentelemetry-collector-contrib `exporter/kafkaexporter`.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from tailspan.errors import UserError
from tailspan_collector.forward.destination import Destination
from tailspan_collector.forward.outcome import Failed, Outcome, Refused, Taken
from tailspan_collector.signals import Signal

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_LOG = logging.getLogger(__name__)
_TOPICS = {"traces": "otlp_spans", "metrics": "otlp_metrics", "logs": "otlp_logs"}
_MOST_MESSAGE = 100 << 20  # above the largest request that the collector takes; the broker has its own limit


class KafkaClient:
    """See `Client`."""

    def __init__(self, destination: Destination, signal: Signal) -> None:
        try:
            import confluent_kafka
        except ImportError as error:
            raise UserError(
                f"forward destination {destination.name!r} is a Kafka topic, for which a package is missing",
                "Install it: pip install 'tailspan[kafka]'",
            ) from error
        self._kafka = confluent_kafka
        self._topic = destination.path.lstrip("/") or _TOPICS[signal.name]
        self._headers: list[tuple[str, str | bytes | None]] = [*destination.headers]
        self._timeout_s = destination.timeout_s
        try:
            self._producer = confluent_kafka.Producer(_settings(destination), logger=_quiet())
        except confluent_kafka.KafkaException as error:
            raise UserError(
                f"forward destination {destination.name!r}: {error.args[0].str()}", "Check 'endpoint', 'tls' and 'sasl'"
            ) from error
        self._is_closed = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="forward-kafka", daemon=True)
        self._poller.start()

    def send(self, payload: bytes) -> Outcome:
        """See `Client`."""
        done, outcome = threading.Event(), list[Outcome]()

        def delivered(error: KafkaError | None, _: Any) -> None:
            outcome.append(Taken() if error is None else self._judge(error))
            done.set()

        try:
            self._producer.produce(self._topic, payload, headers=self._headers, on_delivery=delivered)
        except BufferError:
            return Failed("kafka_queue_full", is_clear=True)
        except self._kafka.KafkaException as error:
            return self._judge(error.args[0])
        # The producer's own time-out comes first, and says why.
        if not done.wait(self._timeout_s + 5) or not outcome:
            return Failed("timeout", is_clear=True)
        return outcome[0]

    def close(self) -> None:
        """See `Client`."""
        self._producer.purge(in_flight=True, blocking=False)
        self._is_closed.set()
        self._poller.join()

    def _poll(self) -> None:
        while not self._is_closed.is_set():
            self._producer.poll(0.1)
        self._producer.poll(0)

    def _judge(self, error: KafkaError) -> Failed | Refused:
        kinds = self._kafka.KafkaError
        reason = f"kafka_{error.name().lstrip('_').lower()}"
        if error.code() in (kinds.MSG_SIZE_TOO_LARGE, kinds.INVALID_RECORD, kinds.INVALID_MSG):
            return Refused(reason, error.str()[:200])
        return Failed(reason, error.str()[:200], is_clear=True)  # of the topic or the broker, not of this message


def _settings(destination: Destination) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": destination.address,
        "acks": "all",
        "compression.type": destination.compression,
        "message.max.bytes": _MOST_MESSAGE,
        "delivery.timeout.ms": int(destination.timeout_s * 1000),
        "request.timeout.ms": int(destination.timeout_s * 1000),
        "linger.ms": 5,
        "reconnect.backoff.max.ms": 5000,
        "client.id": "tailspan",
    }
    tls, login = destination.tls, destination.login
    secure, plain = ("SASL_SSL", "SASL_PLAINTEXT") if login else ("SSL", "PLAINTEXT")
    settings["security.protocol"] = secure if destination.is_encrypted else plain
    for key, path in (("ca", tls.ca), ("certificate", tls.certificate), ("key", tls.key)):
        if path is not None:
            settings[f"ssl.{key}.location"] = str(path)
    if login is not None:
        settings |= {
            "sasl.mechanism": login.mechanism,
            "sasl.username": login.username,
            "sasl.password": login.password,
        }
    return settings


def _quiet() -> logging.Logger:
    """Return a logger for librdkafka, whose own messages would come for every try; the courier tells what is wrong."""
    logger = logging.getLogger(f"{__name__}.librdkafka")
    logger.setLevel(logging.CRITICAL)
    return logger
