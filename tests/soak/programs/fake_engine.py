"""A small engine with hooks like ours: 150 requests with 2 ms of work each, recorded if there is a recorder.

Prints the requests served and the median seconds of one; ends with code 7, which is the engine's own business.
"""

import statistics
import sys
import time

from tailspan.guard import Guard
from tailspan.recorder import Engine, begin_request, now_ns
from tailspan.recorder.process import is_started

GUARD = Guard("test.engine")
engine = Engine("transformers", "m")


def serve() -> None:
    """Serve one request."""
    request = None
    with GUARD:
        if is_started():
            request = begin_request("generate", now_ns())
            engine.queued(request.key, now_ns(), 5)
    until_s = time.thread_time() + 0.002
    while time.thread_time() < until_s:
        pass
    with GUARD:
        if request is not None:
            number = engine.next_step()
            engine.join(request.key, number, now_ns())
            engine.step(number, now_ns(), now_ns(), requests=1, prefill_tokens=5, decode_tokens=0)
            engine.finish(request.key, number, now_ns(), 1)
            request.end(now_ns())


seconds = []
for _ in range(150):
    begin_s = time.thread_time()
    serve()
    seconds.append(time.thread_time() - begin_s)
print(len(seconds), statistics.median(seconds))
sys.exit(7)
