"""For scripts of the tests that do many things with one engine: which requests belong to which, and what is left over.

A case's requests are under an OpenTelemetry span of the case's own trace, so that the test finds them by its name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import context, trace

PARENT_ID = 0xB7AD6B7169203331


def trace_id_of(name: str) -> int:
    """Return the trace of a case."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "big")


@contextmanager
def case(name: str) -> Iterator[None]:
    """What happens inside is under the span of a case."""
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    parent = trace.SpanContext(trace_id_of(name), PARENT_ID, is_remote=True, trace_flags=flags)
    token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(parent)))
    try:
        yield
    finally:
        context.detach(token)


def left_over(engine: Any) -> dict[str, int]:
    """Return what the hooks still hold of requests, by name; of the engine core only where it is in this process."""
    from tailspan.engines import vllm_calls

    held = {"expected": vllm_calls._expected, "calls": getattr(engine.output_processor, "tailspan_calls", {})}
    core = getattr(engine.engine_core, "engine_core", None)
    if core is not None:
        batch = core.scheduler.tailspan_batch
        for name in ("_sequences", "_members", "_prefilling", "_plans", "_telling"):
            held[name] = getattr(batch, name)
    return {name: len(items) for name, items in held.items() if items}
