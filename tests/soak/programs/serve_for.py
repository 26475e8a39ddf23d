"""Serve requests one after the other for a while: each of four stages, with two steps. Usage: SECONDS LOG.

Writes `key duration_ns` of every request to the log, in the monotonic clock.
"""

import sys
import time
from pathlib import Path

from tailspan.recorder import Engine, begin_request, now_ns

end_s = time.monotonic() + float(sys.argv[1])
engine = Engine("transformers", "m")
with Path(sys.argv[2]).open("w") as log:
    while time.monotonic() < end_s:
        begin_ns = now_ns()
        request = begin_request("generate", begin_ns)
        engine.queued(request.key, now_ns(), 7)
        for step in (engine.next_step(), engine.next_step()):
            step_ns = now_ns()
            time.sleep(0.003)
            if step % 2:
                engine.join(request.key, step, step_ns)
            engine.step(step, step_ns, now_ns(), requests=1, prefill_tokens=0, decode_tokens=1)
            if step % 2:
                engine.first_token(request.key, step, now_ns())
        engine.finish(request.key, step, now_ns(), 2)
        end_ns = now_ns()
        request.end(end_ns)
        print(f"{request.key:016x} {end_ns - begin_ns}", file=log)
