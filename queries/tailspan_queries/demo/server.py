"""The model server of the demo: `tailspan run -- transformers serve`, sized for a CPU.

Out:    a running server that has answered warm-up requests; those carry the W3C flag "not sampled", so that they are
        in no trace and no number.
Errors: `ProgramError` with the log's path.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tailspan_queries.demo.client import Target
from tailspan_queries.demo.processes import Program, answers, clean_environment, running, script

HOST = "127.0.0.1"
READY_S = 180.0
STOP_S = 60.0
SERVICE = "tailspan-demo"
BLOCK_TOKENS, BLOCKS, BATCH_TOKENS = 256, 12, 256
"""Tokens a page, pages, and tokens a step of the KV cache. A page holds a whole request of the demo's size, so that
twelve run at once, the others wait in the queue, and hardly any is evicted; more at once only make steps longer.
Without sizes the server measures the free memory, which takes more than a minute on a CPU."""
FAST_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    target: Target
    program: Program


@contextlib.contextmanager
def serving(model: Path, port: int, otlp_port: int, logs: Path) -> Iterator[Server]:
    """Serve the model of the folder `model` under tracing for the length of the `with` block."""
    environment = clean_environment(
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://{HOST}:{otlp_port}",
        OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
        OTEL_SERVICE_NAME=SERVICE,
        TAILSPAN_EXIT_TIMEOUT="30",
        HF_HUB_OFFLINE="1",
        TOKENIZERS_PARALLELISM="false",
        # One thread computes and one core is left for everything else; more threads only wait for each other.
        OMP_NUM_THREADS="1",
    )
    command = [script("tailspan"), "run", "--", *serve_command(model.name, port)]
    log = logs / "server.log"
    # Started beside the model's folder, the server calls the model by the folder's name and not by a long path.
    with running("the model server", command, log, environment, folder=model.parent, stop_s=STOP_S) as program:
        program.wait_until(lambda: answers(f"http://{HOST}:{port}/health"), READY_S)
        yield Server(Target(HOST, port, model.name), program)


def serve_command(model: str, port: int) -> list[str]:
    """Return the command line of `transformers serve`."""
    return [
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


def fastest_dtype(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return `bfloat16` where the CPU computes in it, else `float32`, which is faster than emulating it."""
    try:
        text = cpuinfo.read_text(encoding="utf-8")
    except OSError:
        return "float32"
    flags = {flag for line in text.splitlines() if line.startswith(("flags", "Features")) for flag in line.split()}
    return "bfloat16" if flags.intersection(FAST_BFLOAT16) else "float32"
