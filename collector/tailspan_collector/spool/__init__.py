"""The durable queue of one signal: `Spool` takes requests, the writer and any number of cursors read them.

receivers -> spool.py -> log.py (group commit) -> segments.py, records.py
                         reader.py -> batches.py -> the writer
                                      cursor.py  -> each destination of forwarding
"""

from tailspan_collector.spool.batches import Batch
from tailspan_collector.spool.interfaces import Chunk, Cursor, Intake, Position, Received, SpoolFull
from tailspan_collector.spool.spool import Spool

__all__ = ["Batch", "Chunk", "Cursor", "Intake", "Position", "Received", "Spool", "SpoolFull"]
