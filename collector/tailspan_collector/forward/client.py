"""How a courier talks to a destination, whatever the protocol."""

from __future__ import annotations

from typing import Protocol

from tailspan_collector.forward.destination import GRPC, KAFKA, Destination
from tailspan_collector.forward.outcome import Outcome
from tailspan_collector.signals import Signal


class Client(Protocol):
    """One destination and signal, for any number of threads."""

    def send(self, payload: bytes) -> Outcome:
        """Try once to send a request; returns after the destination's `timeout_s` at the latest."""

    def close(self) -> None:
        """Close the connections; tries that are under way fail."""


def open_client(destination: Destination, signal: Signal) -> Client:
    """Return the client of a destination; connects when it is used.

    Raises:
        UserError: a certificate is none, or a package is missing.
    """
    if destination.protocol == GRPC:
        from tailspan_collector.forward.grpc_client import GrpcClient

        return GrpcClient(destination, signal)
    if destination.protocol == KAFKA:
        from tailspan_collector.forward.kafka_client import KafkaClient

        return KafkaClient(destination, signal)
    from tailspan_collector.forward.http_client import HttpClient

    return HttpClient(destination, signal)
