"""Three threads serve requests and one engine makes steps for each, until somebody kills the process.

Every record is followed by a line in the log: what is in the log was written to the ring before.
Usage: LOG. Lines: `P pid`, then `B key`, `Q key`, `J key`, `F key`, `E key` and `S engine number`.
"""

import os
import sys
import threading
import time

from tailspan.recorder import Engine, begin_request, now_ns

log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(text: str) -> None:
    """Append one line in one system call: it survives the kill."""
    os.write(log, f"{text}\n".encode())


def serve() -> None:
    """Serve one request after the other."""
    engine = Engine("transformers", "m")
    while True:
        request = begin_request("generate", now_ns())
        note(f"B {request.key:016x}")
        request.text("gen_ai.response.id", f"request-{request.key:016x}-{'x' * 60}")
        engine.queued(request.key, now_ns(), 7)
        note(f"Q {request.key:016x}")
        number = engine.next_step()
        engine.join(request.key, number, now_ns())
        note(f"J {request.key:016x}")
        for token in range(3):
            begin_ns = now_ns()
            time.sleep(0.0005)
            engine.step(number, begin_ns, now_ns(), requests=1, prefill_tokens=0, decode_tokens=1)
            note(f"S {engine.id} {number}")
            if token == 0:
                engine.first_token(request.key, number, now_ns())
                note(f"F {request.key:016x}")
            number = engine.next_step()
        engine.finish(request.key, number - 1, now_ns(), 3)
        request.end(now_ns())
        note(f"E {request.key:016x}")


threads = [threading.Thread(target=serve) for _ in range(3)]
for thread in threads:
    thread.start()
note(f"P {os.getpid()}")
