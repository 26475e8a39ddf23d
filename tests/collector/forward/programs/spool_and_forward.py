"""A spool with a forwarder that takes numbered requests until it is killed: `python FILE FOLDER ENDPOINT FIRST COUNT`.

Prints each number once the request is durable, then `delivered` when the destination has everything.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tailspan_collector.forward import Forwarder, from_table
from tailspan_collector.metrics import Metrics
from tailspan_collector.signals import TRACES
from tailspan_collector.spool import Spool


def main() -> None:
    """Run."""
    folder, endpoint, first, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    metrics = Metrics()
    spool = Spool(folder / "traces", TRACES, 1 << 30, 3600, metrics)
    destination = from_table({"endpoint": endpoint, "name": "apm"})
    forwarder = Forwarder(destination, {"traces": spool}, lambda: None, metrics, folder)  # type: ignore[arg-type, return-value]
    forwarder.start()
    for number in range(first, first + count):
        spool.append(b"request %d " % number + bytes(2000))
        print(number, flush=True)
    lag = {"destination": "apm", "signal": "traces"}
    while metrics.registry.get_sample_value("tailspan_collector_forward_lag_bytes", lag):
        time.sleep(0.05)
    print("delivered", flush=True)
    forwarder.stop(5)
    spool.close()


main()
