"""The model server of the demo, under tracing: an engine's own command, sized for where it runs.

Out:    a running server that has answered warm-up requests; those carry the W3C flag "not sampled", so that they are
        in no trace and no number.
Errors: `ProgramError` with the log's path.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tailspan_queries.demo.client import Target
from tailspan_queries.demo.processes import (
    LOG_PREFIX,
    Program,
    answers,
    clean_environment,
    message,
    read_lines,
    running,
)

HOST = "127.0.0.1"
STOP_S = 60.0
SERVER_LOG = "server.log"
SERVICE = "tailspan-demo"
FAST_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")


@dataclass(frozen=True, slots=True)
class Engine:
    """How one engine serves a model: `command` takes what clients call the model, and the port."""

    title: str
    command: Callable[[str, int], list[str]]
    environment: Mapping[str, str]
    ready_s: float
    usual_start: str


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    target: Target
    program: Program


@contextlib.contextmanager
def serving(
    engine: Engine, model: Path, port: int, otlp_port: int, logs: Path, starting: Callable[[str], None] = lambda _: None
) -> Iterator[Server]:
    """Serve the model of the folder `model` for the length of the `with` block.

    Until it answers, `starting` is called again and again with what its log says last.
    """
    environment = clean_environment(
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://{HOST}:{otlp_port}",
        OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
        OTEL_SERVICE_NAME=SERVICE,
        TAILSPAN_EXIT_TIMEOUT="30",
        HF_HUB_OFFLINE="1",
        TOKENIZERS_PARALLELISM="false",
        **engine.environment,
    )
    log = logs / SERVER_LOG
    # Started beside the model's folder, the server calls the model by the folder's name and not by a long path.
    with running(
        "the model server", engine.command(model.name, port), log, environment, folder=model.parent, stop_s=STOP_S
    ) as program:

        def ready() -> bool:
            starting(milestone(read_lines(log)))
            return answers(f"http://{HOST}:{port}/health")

        program.wait_until(ready, engine.ready_s)
        yield Server(Target(HOST, port, model.name), program)


def milestone(lines: Sequence[str]) -> str:
    """Return what a server that starts said last of its own way; warnings sound as if it had failed."""
    prefixes = ((LOG_PREFIX.match(line), line) for line in reversed(lines))
    said = (message(line) for prefix, line in prefixes if prefix and prefix["level"] == "INFO")
    return next(said, "load its packages")


def fastest_dtype(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return `bfloat16` where the CPU computes in it, else `float32`, which is faster than emulating it."""
    try:
        text = cpuinfo.read_text(encoding="utf-8")
    except OSError:
        return "float32"
    flags = {flag for line in text.splitlines() if line.startswith(("flags", "Features")) for flag in line.split()}
    return "bfloat16" if flags.intersection(FAST_BFLOAT16) else "float32"
