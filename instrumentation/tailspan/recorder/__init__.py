"""The hot path: what an instrumented worker calls.

Fixed-size binary records go into one ring in shared memory per thread; a separate agent process turns them into spans.
Nothing here blocks, does I/O after a ring exists, or creates an OpenTelemetry object.
"""

from tailspan.recorder.engine import Engine
from tailspan.recorder.process import close, now_ns
from tailspan.recorder.request import AttributeSet, Request, begin_request, current_request

__all__ = ["AttributeSet", "Engine", "Request", "begin_request", "close", "current_request", "now_ns"]
