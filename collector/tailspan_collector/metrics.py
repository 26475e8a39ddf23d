"""What a collector counts about itself: one object a running collector, handed to every part, read by `/metrics`.

Names follow Prometheus' conventions (seconds, bytes, `_total`). Labels have few values: signals, transports, status
codes and the names of configured destinations; never anything that a sender chooses.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_INSERT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_BATCH_BUCKETS = tuple(2**power * 1024 for power in range(2, 16))
_FSYNC_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class Metrics:
    """The counters, gauges and histograms of one collector."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tailspan_collector_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"tailspan_collector_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"tailspan_collector_{name}", text, labels, buckets=buckets, registry=registry)

        # Receivers
        self.requests = counter("requests", "OTLP requests answered", "signal", "transport", "code")
        self.received_bytes = counter("received_bytes", "OTLP bytes acknowledged, decompressed", "signal", "transport")
        self.connections = gauge("connections", "Open connections", "transport")
        # Spool
        self.spooled = counter("spooled_requests", "Requests made durable in the spool", "signal")
        self.spooled_bytes = counter("spooled_bytes", "Bytes made durable in the spool", "signal")
        self.resent = counter("resent_requests", "Requests recognised as already taken and not kept twice", "signal")
        self.refused = counter("refused_requests", "Requests refused because the spool was full or broken", "signal")
        self.corrupt_bytes = counter(
            "corrupt_bytes", "Bytes of the spool that are no valid record, kept aside", "signal"
        )
        self.unread_bytes = gauge("unread_bytes", "Bytes in the spool that ClickHouse does not have yet", "signal")
        self.lag_seconds = gauge("lag_seconds", "Age of the oldest request that ClickHouse does not have yet", "signal")
        self.fsync_seconds = histogram("fsync_seconds", "Duration of a group commit", _FSYNC_BUCKETS, "signal")
        # Writer
        self.inserts = counter("inserts", "Inserts into ClickHouse by outcome", "signal", "outcome")
        self.written = counter("written_requests", "Requests stored in ClickHouse", "signal")
        self.written_bytes = counter("written_bytes", "Bytes of OTLP stored in ClickHouse", "signal")
        self.rejected = counter("rejected_requests", "Requests kept in tailspan.rejects", "signal")
        self.insert_seconds = histogram("insert_seconds", "Duration of a successful insert", _INSERT_BUCKETS, "signal")
        self.batch_bytes = histogram("batch_bytes", "Size of a successful insert", _BATCH_BUCKETS, "signal")
        # Forwarding
        self.forwarded = counter("forwarded_requests", "Requests that a destination took", "destination", "signal")
        self.forwarded_bytes = counter("forwarded_bytes", "Bytes that a destination took", "destination", "signal")
        self.forward_failures = counter("forward_failures", "Failed tries of a destination", "destination", "signal")
        self.forward_dropped = counter(
            "forward_dropped_requests", "Requests a destination will not get", "destination", "signal", "reason"
        )
        self.forward_rejected = counter(
            "forward_rejected_items",
            "Spans, points or log records that a destination refused of a request that it took",
            "destination",
            "signal",
        )
        self.forward_lag_bytes = gauge("forward_lag_bytes", "Bytes a destination is behind", "destination", "signal")
