"""`transformers serve` in a thread of this process, and a client that measures what a user would."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx


@dataclass(frozen=True, slots=True)
class Answer:
    """A streamed answer as the client saw it."""

    status: int
    data: list[str]
    ttft_s: float
    e2e_s: float


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    url: str

    def post(self, path: str, body: dict[str, Any] | bytes, timeout_s: float = 60.0, **headers: str) -> httpx.Response:
        """Send one request on a connection of its own."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **headers}
        return httpx.post(self.url + path, content=content, headers=headers, timeout=timeout_s)

    def stream(self, path: str, body: dict[str, Any], stop_after: int | None = None) -> Answer:
        """Read an SSE answer; with `stop_after` hang up after so many events. TTFT: first event that is not a role."""
        data: list[str] = []
        ttft_s = 0.0
        with httpx.Client(timeout=60) as client:
            begin = time.perf_counter()
            with client.stream("POST", self.url + path, json={**body, "stream": True}) as response:
                for line in response.iter_lines():
                    if not line.startswith("data: "):
                        continue
                    data.append(line.removeprefix("data: "))
                    if not ttft_s and '"role"' not in line:
                        ttft_s = time.perf_counter() - begin
                    if stop_after is not None and len(data) >= stop_after:
                        break
            return Answer(response.status_code, data, ttft_s, time.perf_counter() - begin)


@contextmanager
def serve(folder: Path | str, *, continuous_batching: bool) -> Iterator[Server]:
    """Serve the model in `folder`, whose name is its only model name, until the block ends."""
    from transformers.cli.serve import Serve

    class InThread(Serve):  # type: ignore[misc]
        """Its own thread leaves the event loop unclosed."""

        def start_server(self) -> None:
            self._thread = threading.Thread(target=lambda: asyncio.run(self.server.serve()))
            self._thread.start()

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options: dict[str, Any] = {"cb_block_size": 16, "cb_num_blocks": 64, "cb_max_batch_tokens": 64}
    running = InThread(
        force_model=str(folder),
        device="cpu",
        host="127.0.0.1",
        port=port,
        non_blocking=True,
        continuous_batching=continuous_batching,
        **(options if continuous_batching else {}),
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_ready(url)
        yield Server(url)
    finally:
        running.kill_server()
        running._thread.join(10)


def _wait_ready(url: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            httpx.get(url + "/health")
        except httpx.TransportError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError(f"no server at {url}")
