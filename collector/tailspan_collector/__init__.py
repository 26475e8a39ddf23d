"""The collector: takes OTLP spans, keeps them safe on disk, and lets ClickHouse decode and store them.

    receiver -> spool -> writer -> sink (embedded.py or server.py) -> ClickHouse -> http.py (read-only)

No span is ever decoded in Python; `runtime.py` starts and stops the parts in order.
"""
