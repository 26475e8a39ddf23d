"""`tailspan run -- transformers serve`, with continuous batching on the CPU."""

from __future__ import annotations

from importlib import metadata

from tailspan_queries.demo.processes import script
from tailspan_queries.demo.server import HOST, Engine, fastest_dtype

READY_S = 180.0
BLOCK_TOKENS, BLOCKS, BATCH_TOKENS = 256, 12, 256
"""Tokens a page, pages, and tokens a step of the KV cache. A page holds a whole request of the demo's size, so that
twelve run at once, the others wait in the queue, and hardly any is evicted; more at once only make steps longer.
Without sizes the server measures the free memory, which takes more than a minute on a CPU."""


def transformers_engine() -> Engine:
    """Return how `transformers serve` is started."""
    # One thread computes and one core is left for everything else; more threads only wait for each other.
    title = f"transformers {metadata.version('transformers')} on the CPU"
    return Engine(title, command, {"OMP_NUM_THREADS": "1"}, READY_S, "about ten seconds")


def command(model: str, port: int) -> list[str]:
    """Return the command line; the model is a folder's name or path."""
    return [
        script("tailspan"),
        "run",
        "--",
        script("transformers"),
        "serve",
        model,
        "--device=cpu",
        f"--dtype={fastest_dtype()}",
        "--continuous-batching",
        f"--cb-block-size={BLOCK_TOKENS}",
        f"--cb-num-blocks={BLOCKS}",
        f"--cb-max-batch-tokens={BATCH_TOKENS}",
        f"--host={HOST}",
        f"--port={port}",
    ]
