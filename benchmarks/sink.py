"""`python -m benchmarks.sink`: an OTLP/gRPC endpoint that acknowledges everything and decodes nothing.

Runs as a process of its own, so that the receiver's work is in nobody's figure. Prints its port, then serves until its
standard input closes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


class _Acknowledge(grpc.GenericRpcHandler):  # type: ignore[misc]
    def service(self, details: Any) -> Any:
        if details.method != _METHOD:
            return None
        # An empty message is a full acknowledgement.
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"")


def main() -> None:
    """Serve until standard input ends."""
    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.max_receive_message_length", 64 << 20)])
    server.add_generic_rpc_handlers((_Acknowledge(),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()
    server.stop(None).wait()


@contextmanager
def sink() -> Iterator[str]:
    """Run the endpoint for the length of the `with` block; give its URL."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.sink"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(child.stdout.readline())}"
        finally:
            child.stdin.close()


if __name__ == "__main__":
    main()
