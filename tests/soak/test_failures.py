"""Whatever is wrong around it, the engine serves as before, as fast, with its own exit code and one warning."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.soak.worker import Worker

WORK_S = 0.002
"""CPU time of the engine's own work for a request."""
SLACK_S = 0.0004
"""What recording, or failing to, may add: far above what it takes on a slow machine, far below a file's creation."""
LEAVE_S = 15.0


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that is wrong. `refuses`: `tailspan run` may say so and end with 2 before it starts anything."""

    variables: dict[str, str] = field(default_factory=dict)
    refuses: bool = False
    warns: bool = True


SETTINGS = {
    "ring size": Case({"TAILSPAN_RING_RECORDS": "77"}, refuses=True),
    "engine": Case({"TAILSPAN_ENGINES": "nonesuch"}, refuses=True),
    "exporter": Case({"OTEL_TRACES_EXPORTER": "bogus"}, refuses=True),
    "protocol": Case({"OTEL_EXPORTER_OTLP_PROTOCOL": "bogus"}, refuses=True),
    "timeout": Case({"OTEL_EXPORTER_OTLP_TIMEOUT": "abc"}, refuses=True),
    "endpoint": Case({"OTEL_EXPORTER_OTLP_ENDPOINT": "no url::"}, refuses=True),
    "folder": Case({"TAILSPAN_RUNTIME_DIR": "/proc/nonesuch"}),
}


@pytest.mark.parametrize("name", ["exporter", "folder"])
def test_wrong_settings(worker: Worker, name: str) -> None:
    """An instrumented program runs on; `tailspan run` starts it, or refuses with one line."""
    check_both(worker, SETTINGS[name])


@pytest.mark.soak
@pytest.mark.parametrize("name", SETTINGS)
def test_all_wrong_settings(worker: Worker, name: str) -> None:
    """The same for every setting."""
    check_both(worker, SETTINGS[name])


def test_a_full_shared_memory(worker: Worker, tiny_tmpfs: Path) -> None:
    """No room for a ring: nothing is recorded, and nothing is tried again for each record."""
    check_both(worker, Case({"TAILSPAN_RUNTIME_DIR": str(tiny_tmpfs / "runtime")}))


@pytest.mark.soak
def test_a_limit_on_file_sizes(worker: Worker) -> None:
    """RLIMIT_FSIZE below the size of a ring."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, limit[1]))
    try:
        check_both(worker, Case())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


def test_an_endpoint_that_hangs(worker: Worker) -> None:
    """It accepts connections and never says a word."""
    with endpoint(lambda _: time.sleep(0.01)) as port:
        check_both(worker, toward(port))


@pytest.mark.soak
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("answer", ["garbage", "refusal", "silence", "nobody"])
def test_an_endpoint_out_of_order(worker: Worker, protocol: str, answer: str) -> None:
    """It answers bytes without meaning, status 400, nothing, or does not exist."""
    answers: dict[str, Callable[[socket.socket], None]] = {
        "garbage": lambda connection: connection.sendall(b"\x00\xff" * 500),
        "refusal": lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
        "silence": lambda _: time.sleep(0.01),
    }
    if answer == "nobody":
        check_both(worker, toward(9, protocol))
        return
    with endpoint(answers[answer]) as port:
        check_both(worker, toward(port, protocol))


def toward(port: int, protocol: str = "grpc") -> Case:
    """An endpoint on this host, with the shortest waits."""
    return Case(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        }
    )


def check_both(worker: Worker, case: Case) -> None:
    """Through `tailspan run` and instrumented from inside, at the same time."""
    variables = {"TAILSPAN_EXIT_TIMEOUT": "1", **case.variables}
    children = [
        worker.start("fake_engine.py", through_run=through_run, linger_s=1, **variables)
        for through_run in (True, False)
    ]
    begin_s = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        outputs = list(pool.map(lambda child: child.communicate(timeout=60)[0], children))
    assert time.monotonic() - begin_s < LEAVE_S, "it did not leave in time, or its output was kept open"
    for number, (child, output) in enumerate(zip(children, outputs, strict=True)):
        said = (worker.folder / f"stderr-{number}").read_text()
        assert "Traceback" not in said, said
        warnings = [line for line in said.splitlines() if "tailspan" in line]
        assert 1 <= len(warnings) <= 2, said
        if number == 0 and case.refuses and child.returncode == 2:
            assert said.startswith("tailspan: error: ")
            assert output == ""
            continue
        assert child.returncode == 7, said
        served, seconds = output.split()
        assert int(served) == 150
        assert float(seconds) < WORK_S + SLACK_S, f"{seconds} s a request"


@contextlib.contextmanager
def endpoint(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Listen, answer the first bytes of every connection as told, and keep it open."""
    kept: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                kept.append(connection)
                connection.settimeout(5)
                connection.recv(65536)
                answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            for connection in kept:
                connection.close()


@pytest.fixture
def tiny_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 256 KiB; skips where mounting is not allowed."""
    folder = tmp_path / "shm"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
