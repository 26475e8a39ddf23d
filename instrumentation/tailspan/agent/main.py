"""`tailspan agent`: the process that reads the rings of one worker and exports its spans.

Ends by itself when the worker is gone, or `tailspan run` says so, and everything is delivered; its last act is to
remove the worker folder. A SIGTERM that a supervisor sends to worker and agent at once does not end it early.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import logging
import os
import shutil
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from tailspan.agent import flight
from tailspan.agent.clock import wall_offset_ns
from tailspan.agent.counters import Counters, of_outboxes
from tailspan.agent.exporters import exporters, resource
from tailspan.agent.join import Joiner
from tailspan.agent.launch import ENDED_FILE
from tailspan.agent.outbox import Outbox
from tailspan.agent.pipeline import Pipeline
from tailspan.agent.settings import AgentSettings
from tailspan.agent.spans import SpanBuilder
from tailspan.agent.watch import watch
from tailspan.agent.worker import WorkerRings
from tailspan.errors import UserError
from tailspan.recorder.identity import process_start_ticks
from tailspan.settings import Settings

logger = logging.getLogger("tailspan.agent")

GC_THRESHOLD = (10_000, 20, 20)
PASS_S = 0.025
"""Pause between two passes over the rings."""
CHECK_PASSES = 4
"""Passes from one look for new rings and dead processes to the next."""
PASSES_TO_READ_ALL = 2
"""Passes in which every record of a dead process is handed out: one sees it, the next returns it."""
LOOK_S = 1.0
"""Seconds between two looks for stalls and drops."""
TERMINAL_S = 0.25
REANCHOR_S = 10.0
"""Seconds after which the offset to wall time is measured again."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    directory: Path
    watch: bool
    parent_pid: int | None
    linger_s: float
    stall_s: float


def main(argv: list[str]) -> int:
    """Run the agent until the worker is gone."""
    logging.basicConfig(
        format="tailspan agent: %(message)s", level=os.environ.get("TAILSPAN_LOG_LEVEL", "WARNING").upper()
    )
    options = _options(argv)
    if options.watch:
        if not options.directory.is_dir():
            raise UserError(f"there is no folder {options.directory}", "Give the TAILSPAN_RUNTIME_DIR of the workers")
        return watch(options.directory)
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
    try:
        agent = Agent(options)
    except UserError:
        # Nobody will ever read the rings: without the folder the worker neither fills memory nor waits at its end.
        shutil.rmtree(options.directory, ignore_errors=True)
        raise
    return agent.run()


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
        self._anchored_at = self._looked_at = 0.0
        self._passes = self._records = 0
        self._dying: dict[int, int] = {}
        self._stalls = flight.StallWatch(round(options.stall_s * 1e9))
        self._told_drops = flight.Drops()
        self._settings = AgentSettings.from_environment()
        self._outboxes = [Outbox(exporter) for exporter in exporters(self._settings)]

    def run(self) -> int:
        """Read until the worker is over, deliver, remove the folder. Returns 0, or 1 when spans were lost."""
        # Nothing that the loop makes is cyclic, so looking for cycles all the time finds none.
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLD)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        threading.Thread(target=self._leave_terminal, name="tailspan-terminal", daemon=True).start()
        while not self.stop.wait(PASS_S):
            self._pass()
            if self._passes % CHECK_PASSES == 0 and self._worker_is_over():
                break
        self._pass(check=True)
        while self._dying or self.rings.pending:
            self._pass(check=True)
        self.joiner.abandon_rest(time.monotonic_ns())
        self._emit(final=True)
        self._look_around()
        if self._pipeline is not None:
            self._pipeline.close()
        delivered = self._close_outboxes()
        self._report()
        shutil.rmtree(self.options.directory, ignore_errors=True)
        return 0 if delivered else 1

    def _leave_terminal(self) -> None:
        """Let go of the worker's output once the worker is gone, so that nobody who reads it waits for the agent."""
        parent = self.options.parent_pid
        if parent is None:
            return
        while not self._parent_is_gone(parent):
            time.sleep(TERMINAL_S)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)

    def _on_signal(self, *_: object) -> None:
        if self.options.parent_pid is None:
            self.stop.set()

    def _close_outboxes(self) -> bool:
        delivered = [outbox.close(self.options.linger_s) for outbox in self._outboxes]
        return all(delivered)

    def _pass(self, *, check: bool = False) -> None:
        self._passes += 1
        if check or self._passes % CHECK_PASSES == 0:
            # Whoever is dead before this pass reads has written all that it ever will.
            self._dying |= dict.fromkeys(self.rings.newly_dead(), PASSES_TO_READ_ALL)
        # Each time: the first request of a new process may be over in a moment, and its ring must be known by then.
        self.rings.discover()
        for pid, events in self.rings.read():
            self._records += len(events)
            self.joiner.feed(events, pid)
        for pid, passes in list(self._dying.items()):
            if passes:
                self._dying[pid] = passes - 1
            else:
                del self._dying[pid]
                self._abandon(pid)
        self._emit(final=False)
        now = time.monotonic()
        if now - self._looked_at > LOOK_S:
            self._looked_at = now
            self._look_around()

    def _abandon(self, pid: int) -> None:
        now_ns = time.monotonic_ns()
        held = self.joiner.held_by(pid)
        concerned = [*self.joiner.abandon(pid, now_ns), *held]
        if concerned:
            stages = flight.stages_of(self.joiner, concerned, now_ns)
            counts = ", ".join(f"{count} in {stage}" for stage, count in Counter(stages.values()).most_common())
            logger.warning("process %d disappeared with %d open requests: %s", pid, len(concerned), counts)
            pipeline = self._pipeline_now()
            pipeline.send([flight.crash(pipeline.builder, self.joiner, pid, concerned, stages, now_ns)])

    def _counters(self) -> Counters:
        known = of_outboxes(self._outboxes)
        return replace(
            known,
            records=self._records,
            records_dropped=self.rings.dropped,
            requests_dropped=self.rings.dropped_requests + self.joiner.orphans,
        )

    def _look_around(self) -> None:
        if not self.rings.found:
            return
        pipeline, now_ns = self._pipeline_now(), time.monotonic_ns()
        pipeline.send(self._stalls.look(self.joiner, pipeline.builder, now_ns))
        dropped = self._drops()
        if new := dropped.since(self._told_drops):
            self._told_drops = dropped
            pipeline.send([flight.drops(pipeline.builder, new, now_ns)])

    def _drops(self) -> flight.Drops:
        return flight.Drops(
            self.rings.dropped,
            self.rings.dropped_requests + self.joiner.orphans,
            sum(outbox.dropped for outbox in self._outboxes),
        )

    def _emit(self, *, final: bool) -> None:
        requests, steps = self.joiner.end_pass(final=final)
        if requests or steps:
            self._pipeline_now().emit(requests, steps)

    def _pipeline_now(self) -> Pipeline:
        now = time.monotonic()
        if self._pipeline is None:
            instance = f"{os.uname().nodename}-{self.options.directory.name.removeprefix('worker-')}"
            builder = SpanBuilder(resource(self.rings.command or "llm-worker", instance), wall_offset_ns())
            self._pipeline = Pipeline(builder, self._outboxes, self._settings, self._counters)
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
        return self._parent_is_gone(parent) or self.rings.said_goodbye(parent)

    def _parent_is_gone(self, pid: int) -> bool:
        # Zero when this process started: it was gone before it could be looked at.
        return self._parent_ticks == 0 or process_start_ticks(pid) != self._parent_ticks

    def _report(self) -> None:
        dropped = self._drops()
        if dropped:
            logger.warning(
                "dropped %d records, %d requests and %d spans; see TAILSPAN_RING_RECORDS and the endpoint's log",
                dropped.records, dropped.requests, dropped.spans,
            )  # fmt: skip


def _options(argv: list[str]) -> Options:
    parser = argparse.ArgumentParser(prog="tailspan agent", description="Drain the rings of a worker and export spans.")
    parser.add_argument("directory", type=Path, help="worker folder, the value of TAILSPAN_WORKER_DIR in the worker")
    parser.add_argument("--watch", action="store_true", help="the folder holds worker folders: serve each of them")
    parser.add_argument("--parent-pid", type=int, help="end when this process and all that recorded are gone")
    parser.add_argument(
        "--linger", type=float, default=60.0, metavar="SECONDS", help="longest time to deliver after the worker's end"
    )
    arguments = parser.parse_args(argv)
    stall_s = Settings.from_environment().stall_timeout_s
    return Options(arguments.directory, arguments.watch, arguments.parent_pid, arguments.linger, stall_s)
