"""The collector of the demo: `tailspan up` on ports of its own, its data in the folder the user names.

Errors: UserError when the collector refuses to start for a reason the user can mend (say, another one owns the folder);
`ProgramError` with the log's path otherwise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tailspan_queries.demo.processes import Program, answers, clean_environment, free_ports, running, script

HOST = "127.0.0.1"
READY_S = 90.0
STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class Collector:
    """Where spans go in and where SQL is answered."""

    otlp_port: int
    clickhouse_url: str
    program: Program


@contextlib.contextmanager
def collecting(data: Path, logs: Path) -> Iterator[Collector]:
    """Run the collector for the length of the `with` block."""
    otlp_port, http_port = free_ports(2)
    command = [
        script("tailspan"),
        "up",
        f"--data={data}",
        f"--otlp-port={otlp_port}",
        f"--http-port={http_port}",
        "--otlp-http-port=0",
        "--admin-port=0",
    ]
    url = f"http://{HOST}:{http_port}"
    with running("the collector", command, logs / "collector.log", clean_environment(), stop_s=STOP_S) as program:
        program.wait_until(lambda: answers(f"{url}/ping"), READY_S)
        yield Collector(otlp_port, url, program)
