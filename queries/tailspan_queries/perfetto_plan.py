"""What an export to a trace viewer holds: the requests and steps of a window, or one trace with what shared its steps.

In: a client, what the user chose, and limits. Out: a `Plan`: requests in the order of time, the steps to read, the base
time, and one line for each thing that is left out.
Errors: `UserError` if there is no such trace, or as `client` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tailspan import attributes
from tailspan_queries.client import Client
from tailspan_queries.events import WorkerEvent, worker_events
from tailspan_queries.filters import Filters
from tailspan_queries.lookup import find_trace
from tailspan_queries.perfetto_records import (
    Engine,
    Request,
    Span,
    Step,
    StepRange,
    read_extent,
    read_requests,
    read_spans,
    read_steps,
)
from tailspan_queries.times import NS_PER_MINUTE, NS_PER_SECOND, Window, datetime_ns, iso

STAYS = (attributes.ROLE_STAGE, attributes.ROLE_SNAPSHOT)
"""Roles of spans that name steps: stages, and those of a request that a stalled engine still holds."""
LOOKBACK_NS = 60 * NS_PER_MINUTE
"""Requests that shared steps with a trace are searched for so long before it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much to export at most."""

    requests: int = 2_000
    steps: int = 20_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What to export; `covered` is the time that it covers."""

    trace_ids: tuple[str, ...]
    requests: tuple[Request, ...]
    shared: tuple[Request, ...]
    steps: tuple[StepRange, ...]
    step_count: int
    covered: Window
    events: tuple[WorkerEvent, ...]
    base_ns: int
    left_out: tuple[str, ...] = ()
    trace_id: str = ""


def plan_window(client: Client, window: Window, filters: Filters, limits: Limits) -> Plan:
    """Choose the requests that began in the window and the engine steps up to the end of the last one."""
    requests = read_requests(client, window, **filters.parameters, limit=limits.requests)
    extent = read_extent(client, StepRange(window, filters), limits.requests)
    last_ns = max((request.end_ns for request in requests), default=window.since_ns)
    left_out = []
    if extent.requests > len(requests):
        until_ns = max(last_ns, window.since_ns) + 1
        left_out.append(
            f"{extent.requests - len(requests):,} of {extent.requests:,} requests, those that began after "
            f"{iso(requests[-1].start_ns)}, and the steps after {iso(last_ns)}: raise --limit or narrow --since/--until"
        )
    else:
        until_ns = max(last_ns + 1, window.until_ns)
    covered = Window(window.since_ns, until_ns)
    steps = StepRange(covered, filters)
    step_count = read_extent(client, steps, 1).steps
    left_out += steps_left_out(step_count, limits)
    events = worker_events(client, covered, filters)
    begins = (extent.trace_begin_ns, extent.step_begin_ns)
    return Plan(
        trace_ids=tuple(dict.fromkeys(request.trace_id for request in requests)),
        requests=tuple(requests),
        shared=(),
        steps=(steps,),
        step_count=min(step_count, limits.steps),
        covered=covered,
        events=events,
        base_ns=base_of((*begins, *event_begins(events)), window.since_ns),
        left_out=tuple(left_out),
    )


def plan_trace(client: Client, text: str, limits: Limits) -> Plan:
    """Choose one trace, the steps that its requests took part in, and the other requests of these steps."""
    found = find_trace(client, text)
    requests = read_requests(client, found.window, trace_id=found.trace_id, limit=limits.requests)
    spans = read_spans(client, found.window, [found.trace_id])
    engines = engine_ranges(spans)
    own_steps = steps_of_trace(client, found.window, found.trace_id) if not engines else []
    engines |= {step.engine: (step.step, step.step) for step in own_steps}
    own: tuple[Request | Span | Step, ...] = (*requests, *spans, *own_steps)
    begin_ns = min((item.start_ns for item in own), default=found.window.since_ns)
    covered = Window(begin_ns, max((item.end_ns for item in own), default=found.window.until_ns) + 1)
    ranges = step_ranges(covered, engines)
    extents = [read_extent(client, wanted, 1) for wanted in ranges]
    step_count = sum(extent.steps for extent in extents)
    shared = requests_of_steps(client, ranges, found.trace_id, limits.requests + 1)
    left_out = steps_left_out(step_count, limits)
    if len(shared) > limits.requests:
        left_out.append(f"requests beyond the earliest {limits.requests:,} that shared its steps: raise --limit")
        shared = shared[: limits.requests]
    begins = (*(request.start_ns for request in shared), *(extent.step_begin_ns for extent in extents))
    workers: tuple[Request | Step, ...] = (*requests, *own_steps)
    service, instance = only({(worker.service, worker.instance) for worker in workers})
    events = worker_events(client, covered, Filters(service, "", instance))
    return Plan(
        trace_ids=(found.trace_id,),
        requests=tuple(requests),
        shared=tuple(shared),
        steps=tuple(ranges),
        step_count=min(step_count, limits.steps),
        covered=covered,
        events=events,
        base_ns=base_of((begin_ns, *begins, *event_begins(events)), begin_ns),
        left_out=tuple(left_out),
        trace_id=found.trace_id,
    )


def engine_ranges(spans: Sequence[Span]) -> dict[Engine, tuple[int, int]]:
    """Return for each engine the first and the last step that a stage names."""
    found: dict[Engine, tuple[int, int]] = {}
    for span in spans:
        if span.role in STAYS and span.engine_id and span.last_step > 0:
            engine = Engine(span.service, span.instance, span.engine_id)
            first, last = found.get(engine, (span.first_step, span.last_step))
            found[engine] = min(first, span.first_step), max(last, span.last_step)
    return found


def step_ranges(covered: Window, engines: Mapping[Engine, tuple[int, int]]) -> list[StepRange]:
    """Return what to read of each engine; a step may begin a little before what it served, and clocks differ."""
    around = Window(covered.since_ns - NS_PER_MINUTE, covered.until_ns + NS_PER_MINUTE)
    return [
        StepRange(around, Filters(engine.service, "", engine.instance), engine.engine_id, first, last)
        for engine, (first, last) in engines.items()
    ]


def steps_of_trace(client: Client, window: Window, trace_id: str) -> list[Step]:
    """Return the engine steps that are spans of a trace; a step is a trace of its own."""
    found = []
    for row in client.run("trace", {**window.parameters, "trace_id": trace_id}).records():
        if row["role"] == attributes.ROLE_STEP:
            at = StepRange(
                Window(row["start_ns"], row["start_ns"] + 1),
                Filters(row["service"], "", row["instance"]),
                row["engine_id"],
            )
            found += [step for step in read_steps(client, at, 100) if step.span_id == row["span_id"]]
    return found


def requests_of_steps(client: Client, ranges: Sequence[StepRange], not_trace: str, limit: int) -> list[Request]:
    """Return the other requests that took part in steps, at most `limit`, in the order of time."""
    found: dict[tuple[str, str], Request] = {}
    for wanted in ranges:
        window = replace(wanted.window, since_ns=wanted.window.since_ns - LOOKBACK_NS)
        parameters = {**replace(wanted, window=window).parameters, "not_trace": not_trace, "limit": limit}
        for request in read_requests(client, window, **parameters):
            found[request.trace_id, request.span_id] = request
    return sorted(found.values(), key=lambda request: (request.start_ns, request.trace_id, request.span_id))[:limit]


def steps_left_out(count: int, limits: Limits) -> list[str]:
    """Say how many steps are beyond the limit."""
    if count <= limits.steps:
        return []
    return [f"the last {count - limits.steps:,} of {count:,} engine steps: raise --steps or narrow --since/--until"]


def only(workers: set[tuple[str, str]]) -> tuple[str, str]:
    """Return the service and instance if there is one, else two empty texts, which let all through."""
    return next(iter(workers)) if len(workers) == 1 else ("", "")


def event_begins(events: Iterable[WorkerEvent]) -> list[int]:
    """Return when events happened, ns since the epoch."""
    return [datetime_ns(event.start) for event in events]


def base_of(begins: Iterable[int | None], otherwise_ns: int) -> int:
    """Return the time from which times are counted: a whole second, one to two seconds before the first begin."""
    first_ns = min((begin for begin in begins if begin is not None), default=otherwise_ns)
    return first_ns // NS_PER_SECOND * NS_PER_SECOND - NS_PER_SECOND
