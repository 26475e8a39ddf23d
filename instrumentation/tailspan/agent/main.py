"""`tailspan agent`: the process that reads the rings of one worker and exports its spans.

Ends by itself when the worker is gone, or `tailspan run` says so, and everything is delivered; its last act is to
remove the worker folder. A SIGTERM that a supervisor sends to worker and agent at once does not end it early.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import shutil
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tailspan.agent.clock import wall_offset_ns
from tailspan.agent.exporters import exporters, resource
from tailspan.agent.join import Joiner
from tailspan.agent.launch import ENDED_FILE
from tailspan.agent.outbox import Outbox
from tailspan.agent.pipeline import Pipeline
from tailspan.agent.spans import SpanBuilder
from tailspan.agent.worker import WorkerRings
from tailspan.errors import UserError
from tailspan.recorder.ring import process_start_ticks

logger = logging.getLogger("tailspan.agent")

PASS_S = 0.025
"""Pause between two passes over the rings."""
REANCHOR_S = 10.0
"""Seconds after which the offset to wall time is measured again."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    directory: Path
    parent_pid: int | None
    linger_s: float


def main(argv: list[str]) -> int:
    """Run the agent until the worker is gone."""
    logging.basicConfig(
        format="tailspan agent: %(message)s", level=os.environ.get("TAILSPAN_LOG_LEVEL", "WARNING").upper()
    )
    options = _options(argv)
    try:
        lock = os.open(options.directory / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UserError(
            f"cannot use the worker folder {options.directory}: {error.strerror}",
            "Give the folder that TAILSPAN_WORKER_DIR names in the worker",
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.info("another agent reads %s", options.directory)
        return 0
    return Agent(options).run()


class Agent:
    """The reading loop."""

    def __init__(self, options: Options) -> None:
        """Prepare; nothing is read yet."""
        self.options = options
        self.rings = WorkerRings(options.directory)
        self.joiner = Joiner()
        self.stop = threading.Event()
        self._parent_ticks = process_start_ticks(options.parent_pid) if options.parent_pid else 0
        self._pipeline: Pipeline | None = None
        self._anchored_at = 0.0
        self._outboxes = [Outbox(exporter) for exporter in exporters()]

    def run(self) -> int:
        """Read until the worker is over, deliver, remove the folder. Returns 0, or 1 when spans were lost."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        while not self.stop.wait(PASS_S):
            self._pass()
            if self._worker_is_over():
                break
        for _ in range(2):  # a record is handed out one pass after it is first seen
            self._pass()
        while self.rings.pending:
            self._pass()
        for pid in self.rings.newly_dead():
            self._abandon(pid)
        self._emit(final=True)
        delivered = self._close_outboxes()
        self._report()
        shutil.rmtree(self.options.directory, ignore_errors=True)
        return 0 if delivered else 1

    def _on_signal(self, *_: object) -> None:
        if self.options.parent_pid is None:
            self.stop.set()

    def _close_outboxes(self) -> bool:
        delivered = [outbox.close(self.options.linger_s) for outbox in self._outboxes]
        return all(delivered)

    def _pass(self) -> None:
        for pid, events in self.rings.read():
            self.joiner.feed(events, pid)
        if not self.rings.pending:
            for pid in self.rings.newly_dead():
                self._abandon(pid)
        self._emit(final=False)

    def _abandon(self, pid: int) -> None:
        lost = self.joiner.abandon(pid, time.monotonic_ns())
        if lost:
            logger.warning("process %d disappeared with %d open requests; they are exported as lost", pid, lost)

    def _emit(self, *, final: bool) -> None:
        requests, steps = self.joiner.end_pass(final=final)
        if not requests and not steps:
            return
        self._pipeline_now().emit(requests, steps)

    def _pipeline_now(self) -> Pipeline:
        now = time.monotonic()
        if self._pipeline is None:
            instance = f"{os.uname().nodename}-{self.options.directory.name.removeprefix('worker-')}"
            builder = SpanBuilder(resource(self.rings.command or "llm-worker", instance), wall_offset_ns())
            self._pipeline = Pipeline(builder, self._outboxes)
            self._anchored_at = now
        elif now - self._anchored_at > REANCHOR_S:
            self._pipeline.builder.offset_ns = wall_offset_ns()
            self._anchored_at = now
        return self._pipeline

    def _worker_is_over(self) -> bool:
        if (self.options.directory / ENDED_FILE).exists():
            return True
        if self.rings.pending or not self.rings.all_over:
            return False
        parent = self.options.parent_pid
        if parent is None:
            return self.rings.found
        gone = process_start_ticks(parent) != self._parent_ticks
        return gone or self.rings.said_goodbye(parent)

    def _report(self) -> None:
        if self.rings.dropped:
            logger.warning("%d records were dropped because a ring was full", self.rings.dropped)
        if self.joiner.orphans:
            logger.warning("%d requests were dropped because the record of their begin was lost", self.joiner.orphans)
        for outbox in self._outboxes:
            if outbox.dropped:
                logger.warning("%d spans were dropped because the queue was full", outbox.dropped)


def _options(argv: list[str]) -> Options:
    parser = argparse.ArgumentParser(prog="tailspan agent", description="Drain the rings of a worker and export spans.")
    parser.add_argument("directory", type=Path, help="worker folder, the value of TAILSPAN_WORKER_DIR in the worker")
    parser.add_argument("--parent-pid", type=int, help="end when this process and all that recorded are gone")
    parser.add_argument(
        "--linger", type=float, default=60.0, metavar="SECONDS", help="longest time to deliver after the worker's end"
    )
    arguments = parser.parse_args(argv)
    return Options(arguments.directory, arguments.parent_pid, arguments.linger)
