"""Export to Perfetto and chrome://tracing: requests, engine steps, device time, layers and counters on one time line.

In: a client and a plan. Out: a file in the Trace Event Format, and a summary. Times are microseconds since the base
time, which the file's metadata holds as ns since the epoch.
Memory: the requests of the plan and their arrows, about 5 kB a request; spans, steps and layers a page at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from tailspan_queries.client import Client
from tailspan_queries.events import WorkerEvent
from tailspan_queries.perfetto_device import DeviceLanes
from tailspan_queries.perfetto_events import instant
from tailspan_queries.perfetto_file import TraceWriter
from tailspan_queries.perfetto_flows import Flows
from tailspan_queries.perfetto_lanes import WORKER_EVENTS, Tracks
from tailspan_queries.perfetto_plan import Plan
from tailspan_queries.perfetto_records import REQUESTS_PER_PAGE, SPANS_PER_PAGE, Request, read_spans, read_steps
from tailspan_queries.perfetto_requests import RequestLanes
from tailspan_queries.perfetto_steps import StepLanes
from tailspan_queries.times import datetime_ns, iso

Progress = Callable[[str, int, int], None]
"""Called with what is written, how much is done, how much there is."""
RULES = (
    "a stage is cut to its request and to the end of the stage before it, a device slice to the end of the one before "
    "it, layers to their step; clipped_ns says by how much, and times in args are as measured"
)


@dataclass(slots=True)
class Summary:
    """What an export wrote."""

    requests: int = 0
    shared: int = 0
    steps: int = 0
    sampled_steps: int = 0
    steps_not_placed: int = 0
    cut_pages: int = 0
    worker_events: int = 0
    events: int = 0


class Exporter:
    """Writes one plan to one stream."""

    def __init__(self, client: Client, plan: Plan, stream: TextIO, progress: Progress) -> None:
        self._client = client
        self._plan = plan
        self._progress = progress
        self._writer = TraceWriter(stream)
        write, base_ns = self._writer.write, plan.base_ns
        self._tracks = Tracks(write)
        self._flows = Flows()
        self._devices = DeviceLanes(write, self._tracks, base_ns)
        self._requests = RequestLanes(write, self._tracks, self._flows, base_ns)
        self._steps = StepLanes(write, self._tracks, self._flows, self._devices, base_ns)
        self._summary = Summary()

    def run(self) -> Summary:
        """Write everything; return how much it was."""
        summary, plan = self._summary, self._plan
        self._writer.begin(metadata(plan))
        self._write_requests(plan.requests, shared=False)
        self._write_requests(plan.shared, shared=True)
        self._write_steps()
        for event in plan.events:
            self._write_worker_event(event)
        for arrow in self._flows.events():
            self._writer.write(arrow)
        self._writer.end()
        summary.requests, summary.shared = len(plan.requests), len(plan.shared)
        summary.sampled_steps, summary.steps_not_placed = self._devices.sampled, self._devices.not_placed
        summary.worker_events, summary.events = len(plan.events), self._writer.events
        return summary

    def _write_requests(self, requests: tuple[Request, ...], *, shared: bool) -> None:
        told: set[str] = set()
        if not requests and not shared:
            # A trace in which no engine took part.
            self._requests.write_page([], read_spans(self._client, self._plan.covered, self._plan.trace_ids))
        for begin in range(0, len(requests), REQUESTS_PER_PAGE):
            page = requests[begin : begin + REQUESTS_PER_PAGE]
            trace_ids = tuple(dict.fromkeys(request.trace_id for request in page))
            spans = read_spans(self._client, self._plan.covered, trace_ids)
            self._summary.cut_pages += len(spans) >= SPANS_PER_PAGE
            self._requests.write_page(page, spans, told, shared=shared)
            told.update(trace_ids)
            self._progress("other requests" if shared else "requests", begin + len(page), len(requests))

    def _write_steps(self) -> None:
        left = self._plan.step_count
        for wanted in self._plan.steps:
            for step in read_steps(self._client, wanted, left):
                self._steps.write_step(step)
                left -= 1
                if left % 500 == 0:
                    self._progress("steps", self._plan.step_count - left, self._plan.step_count)
        self._summary.steps = self._plan.step_count - left

    def _write_worker_event(self, event: WorkerEvent) -> None:
        pid = self._tracks.pid(event.service, event.instance, event.model)
        track = self._tracks.track(pid, WORKER_EVENTS, "worker events")
        named = {
            "pid": event.pid,
            "engine": event.engine_id,
            "last_step": event.step,
            "requests_in_the_batch": event.step_requests,
            "open_requests": event.open_requests,
            "stalled_ns": event.stalled_ns,
            "dropped_records": event.dropped_records,
            "dropped_requests": event.dropped_requests,
            "dropped_spans": event.dropped_spans,
            "trace_id": event.trace_id,
            "open_trace_ids": ", ".join(event.open_trace_ids),
        }
        args = {name: value for name, value in named.items() if value}
        at_ns = datetime_ns(event.start) - self._plan.base_ns
        self._writer.write(instant(track, at_ns, event.event, "worker", args, scope="p"))


def export(client: Client, plan: Plan, stream: TextIO, progress: Progress = lambda *_: None) -> Summary:
    """Write a plan to a stream of text; return how much it was.

    Raises: UserError as `client` says.
    """
    return Exporter(client, plan, stream, progress).run()


def metadata(plan: Plan) -> dict[str, object]:
    """Return what the file says of itself; the base time is text, as JSON numbers are not exact beyond 2**53."""
    found: dict[str, object] = {
        "producer": "tailspan export --perfetto",
        "base_time_unix_ns": str(plan.base_ns),
        "base_time": iso(plan.base_ns),
        "covered": plan.covered.as_json(),
        "requests": len(plan.requests),
        "steps": plan.step_count,
        "left_out": list(plan.left_out),
        "rules": RULES,
    }
    if plan.trace_id:
        found |= {"trace_id": plan.trace_id, "other_requests_of_its_steps": len(plan.shared)}
    return found
