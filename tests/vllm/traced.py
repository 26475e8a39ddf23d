"""One request as its spans tell it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tailspan import attributes as attr
from tests.support.otlp_sink import attributes_of
from tests.vllm.cases import PARENT_ID, trace_id_of
from tests.vllm.running import Offline, requests_of

IMPORTABLE = {"PYTHONPATH": str(Path(__file__).parents[2])}
"""Variables with which a script can import `tests.vllm.cases`."""
ALL_STAGES = ["tokenize", "dispatch", "queue", "prefill", "decode", "detokenize", "respond"]
"""Of a request offline that nothing disturbs."""
LEFT_OVER = 0.01
"""Share of a request that no stage may cover."""
SLACK_NS = 1_000_000
"""The same for requests of a few milliseconds."""


@dataclass(frozen=True)
class Traced:
    """A request span and its stages."""

    root: Span
    stages: list[Span]

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the request span."""
        return attributes_of(self.root.attributes)

    def __getitem__(self, key: str) -> Any:
        """An attribute of the request span."""
        return self.attributes[key]

    @property
    def names(self) -> list[str]:
        """The stages in order."""
        return [stage.name for stage in self.stages]

    @property
    def outcome(self) -> str:
        """How it ended."""
        return str(self[attr.OUTCOME])

    def stage(self, name: str, key: str) -> Any:
        """An attribute of the first stage of that name; None without one."""
        found = next(stage for stage in self.stages if stage.name == name)
        return attributes_of(found.attributes).get(key)

    def ms(self, name: str) -> float:
        """Time in a stage."""
        found = [stage for stage in self.stages if stage.name == name]
        return sum(stage.end_time_unix_nano - stage.start_time_unix_nano for stage in found) / 1e6

    def check(self) -> None:
        """The stages follow each other inside the request and explain at least 99 % of it."""
        root, whole_ns = self.root, self.root.end_time_unix_nano - self.root.start_time_unix_nano
        covered_ns, position_ns = 0, root.start_time_unix_nano
        for stage in self.stages:
            assert position_ns <= stage.start_time_unix_nano <= stage.end_time_unix_nano <= root.end_time_unix_nano
            position_ns = stage.end_time_unix_nano
            covered_ns += stage.end_time_unix_nano - stage.start_time_unix_nano
        assert self[attr.UNATTRIBUTED_NS] == whole_ns - covered_ns
        assert whole_ns - covered_ns <= max(LEFT_OVER * whole_ns, SLACK_NS), (whole_ns, self.names, self.gaps())

    def gaps(self) -> list[tuple[str, str, float]]:
        """Milliseconds between one stage and the next."""
        edges = [("begin", self.root.start_time_unix_nano, self.root.start_time_unix_nano)]
        edges += [(stage.name, stage.start_time_unix_nano, stage.end_time_unix_nano) for stage in self.stages]
        edges.append(("end", self.root.end_time_unix_nano, self.root.end_time_unix_nano))
        return [(one, two, (begin - end) / 1e6) for (one, _, end), (two, begin, _) in pairwise(edges) if begin > end]


def traced(spans: list[Span], case: str | None = None) -> list[Traced]:
    """Return the requests among spans in order of their begin, of one case or of all."""
    wanted = None if case is None else trace_id_of(case).to_bytes(16, "big")
    found = []
    for root in requests_of(spans):
        if wanted in (None, root.trace_id):
            own = [span for span in spans if span.parent_span_id == root.span_id and span.trace_id == root.trace_id]
            found.append(
                Traced(root, sorted(own, key=lambda span: (span.start_time_unix_nano, span.end_time_unix_nano)))
            )
    if case is not None:
        assert all(one.root.parent_span_id == PARENT_ID.to_bytes(8, "big") for one in found)
    return found


def steps_of(spans: list[Span]) -> list[dict[str, Any]]:
    """Return the attributes of all step spans, in order of their begin."""
    steps = [span for span in spans if span.name not in attr.STAGES and span.kind != Span.SPAN_KIND_SERVER]
    described = [attributes_of(span.attributes) for span in sorted(steps, key=lambda span: span.start_time_unix_nano)]
    return [step for step in described if step.get(attr.ROLE) == attr.ROLE_STEP]


def one(done: Offline, case: str) -> Traced:
    """Return the only request of a case."""
    (found,) = traced(done.spans, case)
    return found


def check_all(done: Offline, at_least: int) -> None:
    """All of every request of a script is explained, none is open, and the hooks hold nothing of them."""
    found = traced(done.spans)
    assert len(found) >= at_least
    for request in found:
        request.check()
    assert not [request for request in found if request.outcome in ("lost", "stalled")]
    assert done.value["left over"] == {}
    assert "tailspan hook" not in done.log


def check_alone(done: Offline) -> None:
    """The first request of a script, outside any span, has a trace of its own and no parent."""
    first = traced(done.spans)[0]
    assert not first.root.parent_span_id
    assert sum(request.root.trace_id == first.root.trace_id for request in traced(done.spans)) == 1
    # Start-up renders a prompt as well, which is nobody's.
    assert first.root.start_time_unix_nano > done.value["begun"]


def check_stopped(request: Traced) -> None:
    """It ended with a stop string: no failure, and nobody waited for the engine to hear of it."""
    assert request.outcome == "ok"
    assert request[attr.GEN_AI_FINISH_REASONS] == ["stop"]
    assert request[attr.GEN_AI_OUTPUT_TOKENS] < 40
    assert request.ms("detokenize") + request.ms("respond") < request.ms("decode")
