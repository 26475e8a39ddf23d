"""The real vLLM in processes of its own, traced: a script with an `LLM` in it, or `vllm serve`.

Each sends its spans to an OTLP endpoint of the test. Tracing is switched on by nothing but the installed plugin, so
the variables below are what a user's machine without a GPU needs, not what tailspan needs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tailspan import attributes as attr
from tailspan_queries.demo.model import NAME
from tests.engines.serving import Server
from tests.support.otlp_sink import OtlpSink, attributes_of

MACHINE = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # More threads than one wait for each other on a busy machine: 1 token a second instead of 10.
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
SIZES: Mapping[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 1024,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
}
READY_S = 300.0
STOP_S = 60.0
SCRIPT = """\
import json
import sys


def main():
    from vllm import LLM, SamplingParams

    model, options = sys.argv[1], json.loads(sys.argv[2])
    llm = LLM(model=model, **options)
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
{body}

if __name__ == "__main__":  # processes that vLLM spawns import this file
    value = main()
    with open(sys.argv[3], "w") as result:
        json.dump(value, result)
"""


@dataclass(frozen=True, slots=True)
class Offline:
    """A script that has ended: what it returned, the spans it left, what it printed."""

    value: Any
    spans: list[Span]
    log: str

    @property
    def requests(self) -> list[Span]:
        """The root spans of its requests, in order of their begin."""
        return requests_of(self.spans)


@dataclass(frozen=True, slots=True)
class VllmServer(Server):
    """A running `vllm serve`; `sink` receives what the agent exports."""

    sink: OtlpSink
    pid: int
    log_file: Path

    @property
    def model(self) -> str:
        """The name that clients ask for."""
        return NAME

    @property
    def log(self) -> str:
        """What it printed so far."""
        return self.log_file.read_text(encoding="utf-8")

    def wait_requests(self, count: int, timeout_s: float = 30.0) -> list[Span]:
        """Return the root spans once there are at least `count`, in order of their begin."""
        deadline = time.monotonic() + timeout_s
        while len(found := requests_of(self.sink.spans)) < count:
            assert time.monotonic() < deadline, f"{len(found)} requests of {count} after {timeout_s} s\n{self.log}"
            time.sleep(0.05)
        return found

    def trace(self, root: Span) -> list[Span]:
        """Return the spans of a request in order of their begin, the root first."""
        own = [span for span in self.sink.spans if span.trace_id == root.trace_id]
        return sorted(own, key=lambda span: (span.start_time_unix_nano, span.span_id != root.span_id))


def requests_of(spans: list[Span]) -> list[Span]:
    """Return the root spans of requests; a step is no request."""
    roots = [span for span in spans if span.kind == Span.SPAN_KIND_SERVER]
    return sorted(roots, key=lambda span: span.start_time_unix_nano)


def stages_of(spans: list[Span]) -> list[str]:
    """Return the stages among a trace's spans, in order of their begin."""
    staged = [span for span in spans if attr.STAGE in attributes_of(span.attributes)]
    return [span.name for span in sorted(staged, key=lambda span: span.start_time_unix_nano)]


def environment(endpoint: str, runtime: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a vLLM: nothing of the caller's tracing, no choice of plugins, strict hooks."""
    ours = ("OTEL_", "TAILSPAN_", "VLLM_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {
        **inherited,
        **MACHINE,
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "TAILSPAN_STRICT": "1",
        "TAILSPAN_RUNTIME_DIR": str(runtime),
        "TAILSPAN_EXIT_TIMEOUT": "30",
        **more,
    }


def run_offline(
    model: Path, folder: Path, body: str, *, processes: bool, options: dict[str, Any], **env: str
) -> Offline:
    """Run `body` in a function that has `llm`, `greedy` and `SamplingParams`; what it returns comes back as JSON.

    Without `processes` the engine core and the model run in the script's own process.
    """
    script, result, log = folder / "script.py", folder / "result.json", folder / "script.log"
    script.write_text(SCRIPT.format(body=textwrap.indent(textwrap.dedent(body), "    ")), encoding="utf-8")
    command = [sys.executable, str(script), str(model), json.dumps({**SIZES, **options}), str(result)]
    variables = {"VLLM_ENABLE_V1_MULTIPROCESSING": str(int(processes)), **env}
    with OtlpSink() as sink:
        with log.open("w", encoding="utf-8") as output:
            process = subprocess.Popen(
                command,
                env=environment(sink.endpoint, folder / "runtime", variables),
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(READY_S)
            finally:
                end_group(process)
        text = log.read_text(encoding="utf-8")
        assert code == 0, text
        return Offline(json.loads(result.read_text(encoding="utf-8")), list(sink.spans), text)


@contextlib.contextmanager
def serve(model: Path, folder: Path, *arguments: str, **env: str) -> Iterator[VllmServer]:
    """Run `vllm serve` until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / "serve.log"
    sizes = [f"--{name.replace('_', '-')}={value}" for name, value in SIZES.items() if value is not True]
    command = [str(Path(sys.executable).with_name("vllm")), "serve", str(model), "--served-model-name", NAME]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager", *sizes, *arguments]
    with OtlpSink() as sink, log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command,
            env=environment(sink.endpoint, folder / "runtime", env),
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        server = VllmServer(f"http://127.0.0.1:{port}", sink, process.pid, log)
        try:
            wait_ready(server, process)
            yield server
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_S)
        finally:
            end_group(process)


def wait_ready(server: VllmServer, process: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers; raise with its log when it ends instead, or takes too long."""
    deadline = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{server.url}/health", timeout=5).status_code == 200:
                return
        time.sleep(0.2)
    raise RuntimeError(f"vllm serve did not start:\n{server.log}")


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a process and of those it started; the agent is in a session of its own and ends itself."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
