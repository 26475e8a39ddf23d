"""What an export to a trace viewer reads: requests, spans of their traces, engine steps, page by page.

In: a client and what to read. Out: records; the names of their fields are the columns of the queries `export_*`.
Requests are held as a whole (about 1 kB each), spans and steps only a page at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.times import Window

REQUESTS_PER_PAGE = 200
SPANS_PER_PAGE = 50_000
STEPS_PER_PAGE = 2000


@dataclass(frozen=True, slots=True)
class Request:
    """One request."""

    trace_id: str
    span_id: str
    service: str
    instance: str
    name: str
    model: str
    request_id: str
    start_ns: int
    e2e_ns: int
    ttft_ns: int
    unattributed_ns: int
    gpu_ns: int
    input_tokens: int
    output_tokens: int
    weight: float
    status_code: int
    status_message: str
    outcome: str
    error_type: str

    @property
    def end_ns(self) -> int:
        """End, ns since the epoch."""
        return self.start_ns + max(self.e2e_ns, 0)


@dataclass(frozen=True, slots=True)
class Span:
    """A stage of a request, or a span that another instrumentation told of its trace."""

    trace_id: str
    span_id: str
    parent_span_id: str
    service: str
    instance: str
    name: str
    role: str
    scope: str
    start_ns: int
    wall_ns: int
    busy_ns: int
    gpu_ns: int
    engine_id: str
    first_step: int
    last_step: int
    status_code: int
    status_message: str
    attributes_string: Mapping[str, str]
    attributes_int: Mapping[str, int]
    attributes_double: Mapping[str, float]
    attributes_bool: Mapping[str, bool]

    @property
    def end_ns(self) -> int:
        """End, ns since the epoch."""
        return self.start_ns + max(self.wall_ns, 0)


@dataclass(frozen=True, slots=True)
class Step:
    """One engine step, with device times where they were measured and parts of the model where it was sampled."""

    span_id: str
    service: str
    instance: str
    model: str
    engine_id: str
    step: int
    start_ns: int
    wall_ns: int
    idle_ns: int
    execute_ns: int | None
    sample_ns: int | None
    requests: int
    prefill_tokens: int
    decode_tokens: int
    waiting: int
    preempted: int
    kv_usage_ratio: float | None
    weight: float
    status_code: int
    device: str
    busy_ns: int | None
    device_idle_ns: int | None
    launch_ns: int | None
    begin_ns: int | None
    uncertainty_ns: int | None
    parts: Sequence[str]
    parts_ns: Sequence[float]
    layers_steps: int
    layers_mode: str

    @property
    def end_ns(self) -> int:
        """End, ns since the epoch."""
        return self.start_ns + max(self.wall_ns, 0)

    @property
    def engine(self) -> Engine:
        """The engine that made the step."""
        return Engine(self.service, self.instance, self.engine_id)


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine of one instance of a service."""

    service: str
    instance: str
    engine_id: str


@dataclass(frozen=True, slots=True)
class StepRange:
    """Steps to read: those of a window that pass the filters, of one engine if it is named, from number to number."""

    window: Window
    filters: Filters = ALL
    engine_id: str = ""
    first_step: int = 0
    last_step: int = 0

    @property
    def parameters(self) -> dict[str, str | int]:
        """The parameters of the queries that read steps."""
        return {
            **self.window.parameters,
            **self.filters.parameters,
            "engine_id": self.engine_id,
            "first_step": self.first_step,
            "last_step": self.last_step,
        }


@dataclass(frozen=True, slots=True)
class Extent:
    """How much there is, and when it begins; the columns of query `export_extent`."""

    requests: int
    steps: int
    trace_begin_ns: int | None
    step_begin_ns: int | None


def read_requests(client: Client, window: Window, **parameters: str | int) -> list[Request]:
    """Return requests in the order of time; `parameters` are those of query `export_requests`."""
    return [Request(**row) for row in client.run("export_requests", {**window.parameters, **parameters}).records()]


def read_spans(client: Client, window: Window, trace_ids: Sequence[str]) -> list[Span]:
    """Return the stages of these traces and spans of others in them, in the order of time; at most `SPANS_PER_PAGE`."""
    if not trace_ids:
        return []
    parameters = {**window.parameters, "traces": list(trace_ids), "limit": SPANS_PER_PAGE}
    return [Span(**row) for row in client.run("export_spans", parameters).records()]


def read_steps(client: Client, wanted: StepRange, limit: int) -> Iterator[Step]:
    """Yield at most `limit` steps in the order of time."""
    after: dict[str, str | int] = {}
    left = limit
    while left > 0:
        size = min(left, STEPS_PER_PAGE)
        rows = client.run("export_steps", {**wanted.parameters, **after, "limit": size}).records()
        steps = [Step(**row) for row in rows]
        yield from steps
        left -= len(steps)
        if len(steps) < size:
            return
        after = {"after_ns": steps[-1].start_ns, "after_span": steps[-1].span_id}


def read_extent(client: Client, wanted: StepRange, limit: int) -> Extent:
    """Return how much there is; the begin of traces is over the first `limit` requests."""
    return Extent(**client.run("export_extent", {**wanted.parameters, "limit": limit}).records()[0])
