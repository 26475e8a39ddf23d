"""100 mixed requests for a small `vllm serve`: what is asked, what the client saw, what the spans say of it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tailspan import attributes as attr
from tests.support.otlp_sink import attributes_of
from tests.vllm.running import VllmServer

REQUESTS = 100
EXPORT_S = 60.0
WORDS = ["river", "mountain", "engine", "tensor", "cache", "window", "bridge", "market", "garden", "signal", "copper"]
SHARED_WORDS = 150
"""Words of a prefix that every third prompt begins with: more than one KV block, so that it can be found again."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One planned request."""

    number: int
    trace_id: str
    parent_id: str
    kind: str
    """`plain`, `invalid` or `disconnect`."""
    stream: bool
    words: int
    tokens: int
    prompt: str

    def plan(self, model: str) -> dict[str, Any]:
        """Return it for the client."""
        body = {
            "model": model, "messages": [{"role": "user", "content": self.prompt}], "temperature": 0,
            "ignore_eos": True, "max_tokens": -1 if self.kind == "invalid" else self.tokens, "stream": self.stream,
        }  # fmt: skip
        headers = {
            "traceparent": f"00-{self.trace_id}-{self.parent_id}-01",
            "x-request-id": f"mine-{self.number}",
            "x-tailspan-timing": "1",
        }
        hang_up = 3 if self.kind == "disconnect" else 0
        return {"path": "/v1/chat/completions", "headers": headers, "body": body, "hang_up_after": hang_up}


@dataclass(frozen=True)
class Seen:
    """One request from both sides. Units: ms."""

    asked: Asked
    client: dict[str, Any]
    spans: list[Span]

    @cached_property
    def root(self) -> Span:
        """The request span: the one whose parent is the client's."""
        (found,) = [span for span in self.spans if span.parent_span_id.hex() == self.asked.parent_id]
        return found

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the request span."""
        return attributes_of(self.root.attributes)

    @cached_property
    def stages(self) -> list[Span]:
        """The stage spans in order."""
        own = [span for span in self.spans if span.parent_span_id == self.root.span_id]
        return sorted(own, key=lambda span: (span.start_time_unix_nano, span.end_time_unix_nano))

    @property
    def e2e_ms(self) -> float:
        """End-to-end time by the spans."""
        return (self.root.end_time_unix_nano - self.root.start_time_unix_nano) / 1e6

    @property
    def client_e2e_ms(self) -> float:
        """End-to-end time by the client's clock."""
        return float(self.client["end_ns"] - self.client["sent_ns"]) / 1e6

    @property
    def ttft_ms(self) -> float:
        """Time to the first body chunk with output, by the spans."""
        return float(self.attributes[attr.TTFT_NS]) / 1e6

    @property
    def client_ttft_ms(self) -> float:
        """Time to the first token by the client's clock; without streaming the whole answer is the first chunk."""
        first_ns = self.client["chunks_ns"][0] if self.asked.stream else self.client["end_ns"]
        return float(first_ns - self.client["sent_ns"]) / 1e6

    @property
    def unattributed(self) -> float:
        """Share of the request that no stage covers."""
        return float(self.attributes[attr.UNATTRIBUTED_NS]) / (self.e2e_ms * 1e6)

    @property
    def itl_ms(self) -> float:
        """Mean gap between tokens, by the spans: from the end of the first prefill to that of the last decode."""
        first = next(stage for stage in self.stages if stage.name == "prefill").end_time_unix_nano
        last = max(stage.end_time_unix_nano for stage in self.stages if stage.name == "decode")
        return (last - first) / 1e6 / max(1, int(self.attributes[attr.GEN_AI_OUTPUT_TOKENS]) - 1)

    @property
    def client_itl_ms(self) -> float:
        """Mean gap between tokens by the client: one that completes no character has no event of its own."""
        return float(self.client["end_ns"] - self.client["chunks_ns"][0]) / 1e6 / max(1, self.asked.tokens - 1)


def plan(seed: int = 7) -> list[Asked]:
    """Return 100 requests: 5 invalid, 5 that hang up, half of the rest streamed, a third with a shared prefix."""
    rng = random.Random(seed)
    shared = " ".join(rng.choices(WORDS, k=SHARED_WORDS))
    asked = []
    for number in range(REQUESTS):
        kind = {7: "invalid", 13: "disconnect"}.get(number % 20, "plain")
        words = rng.choice((5, 20, 60, 120))
        prompt = " ".join(rng.choices(WORDS, k=words))
        asked.append(
            Asked(
                number, f"{rng.getrandbits(128):032x}", f"{rng.getrandbits(64) | 1:016x}", kind,
                kind == "disconnect" or number % 2 == 0, words,
                60 if kind == "disconnect" else rng.choice((4, 16, 32, 64)),
                f"{shared} {prompt}" if number % 3 == 0 else prompt,
            )
        )  # fmt: skip
    return asked


def run(server: VllmServer, asked: list[Asked], folder: Path) -> list[Seen]:
    """Send the requests from a process of their own and return both sides of each."""
    planned, result = folder / "plan.json", folder / "seen.json"
    planned.write_text(json.dumps([item.plan(server.model) for item in asked]), encoding="utf-8")
    command = [sys.executable, str(Path(__file__).with_name("load.py")), server.url, str(planned), str(result)]
    subprocess.run(command, check=True, timeout=500)
    observed = json.loads(result.read_text(encoding="utf-8"))
    by_trace = _spans(server, {item.trace_id for item in asked})
    return [Seen(item, seen, by_trace[item.trace_id]) for item, seen in zip(asked, observed, strict=True)]


def _spans(server: VllmServer, wanted: set[str]) -> dict[str, list[Span]]:
    deadline = time.monotonic() + EXPORT_S
    while True:
        by_trace: dict[str, list[Span]] = {trace_id: [] for trace_id in wanted}
        for span in server.sink.spans:
            by_trace.get(span.trace_id.hex(), []).append(span)
        missing = [trace_id for trace_id, spans in by_trace.items() if not spans]
        if not missing:
            return by_trace
        assert time.monotonic() < deadline, f"no span of {len(missing)} requests\n{server.log}"
        time.sleep(0.2)
