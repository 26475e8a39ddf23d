"""Sends what was received on to other OTLP endpoints and Kafka topics, each at its own pace.

config.py -> destination.py      what the user asked for
forwarder.py                     one destination at work: a lane for each signal, or a sampler
lane.py                          spool cursor -> courier, the same bytes
sampler.py, slices.py, sql/      ClickHouse -> traces.py, weights.py -> courier, for `sample`
courier.py, window.py, pace.py   several requests in flight, retries, patience
client.py -> grpc_client.py, http_client.py, kafka_client.py -> outcome.py
"""

from tailspan_collector.forward.config import destinations, from_table, from_url
from tailspan_collector.forward.destination import Destination
from tailspan_collector.forward.forwarder import Forwarder, stop_all

__all__ = ["Destination", "Forwarder", "destinations", "from_table", "from_url", "stop_all"]
