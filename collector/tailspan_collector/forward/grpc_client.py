"""OTLP/gRPC: the request's bytes go out as they are.

Retries and deadlines are the courier's, so those of gRPC are switched off. Proxies: gRPC itself honours `http_proxy`,
`https_proxy` and `no_proxy`.
"""

from __future__ import annotations

import grpc

from tailspan_collector.forward.destination import Destination, Tls
from tailspan_collector.forward.outcome import Failed, Outcome, grpc_failure, taken
from tailspan_collector.signals import Signal

_OPTIONS = (
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5000),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Channels to one address share connections; one destination's trouble must stay its own.
    ("grpc.use_local_subchannel_pool", 1),
)


class GrpcClient:
    """See `Client`."""

    def __init__(self, destination: Destination, signal: Signal) -> None:
        self._signal, self._timeout_s = signal, destination.timeout_s
        self._headers = destination.headers
        self._compression = grpc.Compression.Gzip if destination.compression == "gzip" else None
        if destination.is_encrypted:
            self._channel = grpc.secure_channel(destination.address, _credentials(destination.tls), _OPTIONS)
        else:
            self._channel = grpc.insecure_channel(destination.address, _OPTIONS)
        self._call = self._channel.unary_unary(f"/{signal.service}/Export")

    def send(self, payload: bytes) -> Outcome:
        """See `Client`."""
        try:
            body = self._call(payload, timeout=self._timeout_s, metadata=self._headers, compression=self._compression)
        except grpc.RpcError as error:
            return grpc_failure(error.code(), error.details() or "", error.trailing_metadata() or ())
        except ValueError as error:  # the channel is closed
            return Failed("closed", str(error), is_clear=True)
        return taken(self._signal, body)

    def close(self) -> None:
        """See `Client`."""
        self._channel.close()


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    ca, key, certificate = (path and path.read_bytes() for path in (tls.ca, tls.key, tls.certificate))
    return grpc.ssl_channel_credentials(ca, key, certificate)
