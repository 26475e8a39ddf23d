"""The lanes of requests: each a slice with its stages in it, and beside them what other instrumentations told.

Rule for nesting: a stage lies within its request and begins no earlier than the one before it ends; what sticks out is
cut, `clipped_ns` says by how much, and `wall_ns` stays as measured. A stage that has no length, or none left, is named
in the arguments of the request instead.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailspan import attributes
from tailspan_queries.perfetto_events import GREY, RED, Event, Slice, Track, complete, instant
from tailspan_queries.perfetto_flows import Flows
from tailspan_queries.perfetto_lanes import OTHERS, REQUESTS, SPANS, Forest, Packer, Tracks
from tailspan_queries.perfetto_records import Engine, Request, Span
from tailspan_queries.records import STATUS_ERROR

TEXT_LIMIT = 500
"""Characters of an attribute of someone else's span that are kept."""


@dataclass(slots=True)
class RequestLanes:
    """Writes requests, and the spans of their traces."""

    write: Callable[[Event], None]
    tracks: Tracks
    flows: Flows
    base_ns: int
    _packers: dict[tuple[int, int], Packer] = field(default_factory=dict)
    _forests: dict[int, Forest] = field(default_factory=dict)

    def write_page(
        self, requests: Sequence[Request], spans: Sequence[Span], told: Container[str] = (), *, shared: bool = False
    ) -> None:
        """Write requests, in the order of time, with the spans of their traces.

        `shared`: they are here because they shared steps, and without spans of other instrumentations. `told`: traces
        of which these are written already.
        """
        stages: dict[tuple[str, str], list[Span]] = {}
        for span in spans:
            if span.role == attributes.ROLE_STAGE:
                stages.setdefault((span.trace_id, span.parent_span_id), []).append(span)
        for request in requests:
            found = stages.get((request.trace_id, request.span_id), ())
            # Of stages that begin together, one without length comes first.
            self.write_request(request, sorted(found, key=lambda stage: (stage.start_ns, stage.end_ns)), shared=shared)
        if not shared:
            others = [span for span in spans if span.role != attributes.ROLE_STAGE and span.trace_id not in told]
            self._write_spans(others)

    def write_request(self, request: Request, stages: Sequence[Span], *, shared: bool = False) -> None:
        """Write one request and its stages."""
        pid = self.tracks.pid(request.service, request.instance, request.model)
        kind, lanes = (OTHERS, "others in the batch") if shared else (REQUESTS, "requests")
        begin_ns, end_ns = self._interval(request)
        lane = self._packers.setdefault((pid, kind), Packer()).place(begin_ns, end_ns)
        track = self.tracks.numbered(pid, kind, lane, lanes)
        category = "other" if shared else attributes.ROLE_REQUEST
        color = GREY if shared else RED if request.status_code == STATUS_ERROR else ""
        place = Slice(track, begin_ns, end_ns)
        drawn = self._places(place, stages)
        args = request_args(request)
        if without := {stage.name: stage.wall_ns for stage, at in drawn if at.begin_ns == at.end_ns}:
            args["stages_without_length"] = without
        self.write(complete(place, request.name or "request", category, args, color=color))
        for stage, at in drawn:
            if at.begin_ns < at.end_ns:
                self._write_stage(stage, at, shared=shared)
        if request.ttft_ns > 0 and not shared:
            at_ns = min(begin_ns + request.ttft_ns, end_ns)
            self.write(instant(track, at_ns, "first token", category, {"ttft_ns": request.ttft_ns}, scope="t"))

    def _places(self, request: Slice, stages: Sequence[Span]) -> list[tuple[Span, Slice]]:
        """Return where the stages of a request lie; one that is cut away, or took no time, has no length."""
        free_ns, found = request.begin_ns, []
        for stage in stages:
            begin_ns = min(max(stage.start_ns - self.base_ns, free_ns), request.end_ns)
            free_ns = min(max(stage.end_ns - self.base_ns, begin_ns), request.end_ns)
            found.append((stage, Slice(request.track, begin_ns, free_ns)))
        return found

    def _write_stage(self, stage: Span, place: Slice, *, shared: bool) -> None:
        args = stage_args(stage, max(stage.wall_ns, 0) - (place.end_ns - place.begin_ns))
        category = "other" if shared else attributes.ROLE_STAGE
        self.write(complete(place, stage.name, category, args, color=GREY if shared else ""))
        if not shared and stage.engine_id and stage.last_step > 0:
            engine = Engine(stage.service, stage.instance, stage.engine_id)
            self.flows.add(engine, place, stage.first_step, stage.last_step)

    def _write_spans(self, spans: Sequence[Span]) -> None:
        """Write spans of other instrumentations, a lane for each that does not lie within its parent."""
        for forest in self._forests.values():
            forest.forget()
        for span in spans:
            pid = self.tracks.pid(span.service, span.instance)
            begin_ns, end_ns = self._interval(span)
            forest = self._forests.setdefault(pid, Forest())
            key, parent = span.trace_id + span.span_id, span.trace_id + span.parent_span_id
            track: Track = self.tracks.numbered(pid, SPANS, forest.place(key, parent, begin_ns, end_ns), "other spans")
            color = RED if span.status_code == STATUS_ERROR else ""
            place = Slice(track, begin_ns, end_ns)
            self.write(complete(place, span.name or "span", span.role or "span", span_args(span), color=color))

    def _interval(self, item: Request | Span) -> tuple[int, int]:
        """Return begin and end since the base; a viewer puts what follows into a slice without length: it gets 1 ns."""
        begin_ns = max(item.start_ns - self.base_ns, 0)
        return begin_ns, max(item.end_ns - self.base_ns, begin_ns + 1)


def request_args(request: Request) -> dict[str, Any]:
    """Return what a viewer shows of a request."""
    args: dict[str, Any] = {
        "trace_id": request.trace_id,
        "span_id": request.span_id,
        "request_id": request.request_id,
        "model": request.model,
        "outcome": request.outcome,
        "input_tokens": request.input_tokens,
        "output_tokens": request.output_tokens,
        "e2e_ns": request.e2e_ns,
        "ttft_ns": request.ttft_ns,
        "unattributed_ns": request.unattributed_ns,
    }
    if request.gpu_ns >= 0:
        args["gpu_ns"] = request.gpu_ns
    if request.weight != 1:
        args["stands_for_requests"] = request.weight
    if request.status_code == STATUS_ERROR:
        args["error"] = ": ".join(filter(None, (request.error_type, request.status_message))) or "error"
    return args


def stage_args(stage: Span, clipped_ns: int) -> dict[str, Any]:
    """Return what a viewer shows of a stage."""
    args: dict[str, Any] = {"wall_ns": stage.wall_ns}
    if stage.busy_ns:
        args["busy_ns"] = stage.busy_ns
    if stage.gpu_ns >= 0:
        args["gpu_ns"] = stage.gpu_ns
    if stage.engine_id and stage.last_step > 0:
        args |= {"engine": stage.engine_id, "first_step": stage.first_step, "last_step": stage.last_step}
    if clipped_ns:
        args["clipped_ns"] = clipped_ns
    return args


def span_args(span: Span) -> dict[str, Any]:
    """Return what a viewer shows of someone else's span: who told it, and its attributes."""
    args: dict[str, Any] = {
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "scope": span.scope,
        "wall_ns": span.wall_ns,
    }
    if span.status_code == STATUS_ERROR:
        args["error"] = span.status_message or "error"
    maps: tuple[Mapping[str, Any], ...] = (
        span.attributes_string,
        span.attributes_int,
        span.attributes_double,
        span.attributes_bool,
    )
    for found in maps:
        args |= {key: value[:TEXT_LIMIT] if isinstance(value, str) else value for key, value in found.items()}
    return args
