"""The collector: takes OTLP spans, keeps them safe on disk, and lets ClickHouse decode and store them.

    receiver -> spool -> writer -> sink (embedded.py or server.py) -> ClickHouse -> http.py (read-only)

No span is ever decoded in Python; `runtime.py` starts and stops the parts in order.
"""

import os

# gRPC reads this when it is first imported. Its newer listener reads sockets in threads of its own, which wake the one
# that waits for calls several times a request; the older one reads them in that thread, for 6 to 10 % less CPU.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")
