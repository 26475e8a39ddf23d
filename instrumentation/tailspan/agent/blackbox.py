"""`tailspan blackbox DIR`: what a worker was doing when it died, from its ring files alone.

For a container that is gone together with its agent: copy the worker folder (or the folder of all workers) out of its
volume and read it anywhere. Nothing is changed or sent. Times are wall time by the anchor in each ring.

JSON, stable: `processes` [{pid, command, records, dropped_records, last_record, engines, open_requests}].
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from tailspan import attributes as attr
from tailspan.agent.decode import Event, Record, RingDecoder, Step
from tailspan.agent.join import Joiner, steps_of
from tailspan.agent.ledger import stage_at
from tailspan.agent.model import EngineState, RequestState
from tailspan.errors import UserError
from tailspan.recorder.layout import Kind
from tailspan.recorder.reader import RingHeader, read_history

_TIMES = {Kind.BEGIN: "a", Kind.QUEUED: "a", Kind.JOIN: "b", Kind.FIRST_TOKEN: "b", Kind.LEAVE: "b", Kind.FINISH: "b",
          Kind.STAGE: "b", Kind.END: "a"}  # fmt: skip
"""Which number of a record is its time."""


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request that had not ended; `in_stage_s` and `age_s` are up to the last record of its process."""

    trace_id: str
    request_id: str
    stage: str
    in_stage_s: float
    age_s: float
    engine: str
    last_step: int


@dataclass(frozen=True, slots=True)
class EngineLine:
    """The last step of an engine, `silent_s` before the last record of its process."""

    engine: str
    model: str
    last_step: int
    requests: int
    waiting: int
    prefill_tokens: int
    decode_tokens: int
    silent_s: float


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """One process of the worker."""

    pid: int
    command: str
    records: int
    dropped_records: int
    last_record: str
    engines: tuple[EngineLine, ...]
    open_requests: tuple[OpenRequest, ...]


def blackbox(argv: list[str]) -> int:
    """Print the report of every process that recorded into the folder."""
    parser = argparse.ArgumentParser(prog="tailspan blackbox", description="What was a dead worker doing?")
    parser.add_argument("directory", type=Path, help="worker folder, or the folder that holds several")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    arguments = parser.parse_args(argv)
    reports = examine(arguments.directory)
    if arguments.format == "json":
        print(json.dumps({"processes": [asdict(report) for report in reports]}, indent=2))  # noqa: T201
    else:
        print("\n\n".join(map(_text, reports)))  # noqa: T201
    return 0


def examine(directory: Path) -> list[ProcessReport]:
    """Return the reports of all processes, the one that recorded last first.

    Raises:
        UserError: there is no ring, or one cannot be read.
    """
    paths = sorted(directory.glob("*.ring")) or sorted(directory.glob("*/*.ring"))
    if not paths:
        raise UserError(f"{directory} holds no ring", "Give a worker folder: TAILSPAN_WORKER_DIR of the worker")
    workers: dict[Path, dict[int, list[_History]]] = {}
    for path in paths:
        history = _History.read(path)
        workers.setdefault(path.parent, {}).setdefault(history.header.pid, []).append(history)
    reports = [report for processes in workers.values() for report in _worker(processes)]
    return sorted(reports, key=lambda report: report.last_record)[::-1]


@dataclass(frozen=True, slots=True)
class _History:
    header: RingHeader
    events: list[Event]
    records: int
    dropped: int

    @classmethod
    def read(cls, path: Path) -> _History:
        try:
            header, slots, dropped = read_history(path)
            return cls(header, list(RingDecoder().decode(slots)), len(slots), dropped)
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read {path}: {error}", "Give a folder that a worker recorded into") from error


def _worker(processes: dict[int, list[_History]]) -> list[ProcessReport]:
    # A request may begin in one process and be computed in another.
    joiner = Joiner()
    for pid, histories in processes.items():
        for history in histories:
            joiner.feed(history.events, pid)
    return [_report(joiner, histories) for histories in processes.values()]


def _report(joiner: Joiner, histories: list[_History]) -> ProcessReport:
    header = histories[0].header
    last_ns = max((_time(event) for history in histories for event in history.events), default=header.anchor_mono_ns)
    wall_s = (last_ns + header.anchor_wall_ns - header.anchor_mono_ns) / 1e9
    engines = {engine.engine: engine for engine in joiner.engines.values() if engine.pid == header.pid}
    unfinished = [
        request
        for request in joiner.open.values()
        if request.end_ns is None and (request.pid == header.pid or request.engine in engines)
    ]
    return ProcessReport(
        pid=header.pid,
        command=header.command,
        records=sum(history.records for history in histories),
        dropped_records=sum(history.dropped for history in histories),
        last_record=datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        engines=tuple(_engine_line(engine, last_ns) for engine in engines.values() if engine.steps),
        open_requests=tuple(_open(joiner, request, last_ns) for request in sorted(unfinished, key=_begin)),
    )


def _open(joiner: Joiner, request: RequestState, last_ns: int) -> OpenRequest:
    engine = joiner.engines.get(request.engine)
    now = replace(request, begin_ns=_begin(request))
    stage = stage_at(now, engine, steps_of(now, engine), last_ns)
    return OpenRequest(
        trace_id=f"{request.trace_id:032x}" if request.trace_id else "(begin overwritten)",
        request_id=str(request.attributes.get(attr.GEN_AI_RESPONSE_ID, "")),
        stage=stage.stage if stage is not None else "receive",
        in_stage_s=(last_ns - stage.begin_ns) / 1e9 if stage is not None else 0.0,
        age_s=(last_ns - _begin(request)) / 1e9,
        engine=request.engine,
        last_step=max(engine.steps) if engine is not None and engine.steps and request.memberships else 0,
    )


def _begin(request: RequestState) -> int:
    known = (request.begin_ns, request.queued_ns, *(membership.join_ns for membership in request.memberships))
    return min((time_ns for time_ns in known if time_ns is not None), default=0)


def _engine_line(engine: EngineState, last_ns: int) -> EngineLine:
    step = engine.steps[max(engine.steps)]
    return EngineLine(
        engine.engine, engine.model, step.number, step.requests, step.waiting, step.prefill_tokens, step.decode_tokens,
        max(0, last_ns - step.end_ns) / 1e9,
    )  # fmt: skip


def _time(event: Event) -> int:
    if isinstance(event, Step):
        return event.end_ns
    if isinstance(event, Record) and event.kind in _TIMES:
        return int(getattr(event, _TIMES[event.kind]))
    return 0


def _text(report: ProcessReport) -> str:
    kept = f"{report.records:,} records kept"
    if report.dropped_records:
        kept += f", {report.dropped_records:,} dropped"
    lines = [f"process {report.pid} ({report.command}) recorded last at {report.last_record}: {kept}"]
    lines += [
        f"  engine {line.engine or '(name overwritten)'} ({line.model}): last step {line.last_step}, "
        f"{line.silent_s:.3f} s before that; batch {line.requests} ({line.prefill_tokens} prefill, "
        f"{line.decode_tokens} decode tokens), {line.waiting} waiting"
        for line in report.engines
    ]
    if not report.open_requests:
        return "\n".join([*lines, "  no request was under way"])
    lines.append(f"  {'trace':<32}  {'stage':<10} {'for':>9} {'age':>9}  {'last step':>9}  request")
    return "\n".join([*lines, *_request_lines(report.open_requests)])


def _request_lines(requests: Iterable[OpenRequest]) -> list[str]:
    return [
        f"  {line.trace_id:<32}  {line.stage:<10} {line.in_stage_s:>7.3f} s {line.age_s:>7.3f} s  "
        f"{line.last_step or '-':>9}  {line.request_id}"
        for line in requests
    ]
