"""The examples of docs/API.md run as they stand, against a real agent and endpoint."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tailspan import attributes as attr
from tests.support.otlp_sink import OtlpSink, attributes_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "API.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def run(source: str, tmp_path: Path, sink: OtlpSink) -> str:
    """Run an example to its end, with its spans delivered, and return what it printed."""
    program = tmp_path / "example.py"
    program.write_text(source)
    done = subprocess.run(
        [sys.executable, str(program)],
        env=os.environ
        | {
            "OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint,
            "TAILSPAN_RUNTIME_DIR": str(tmp_path / "run"),
            "TAILSPAN_EXIT_TIMEOUT": "20",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def children(sink: OtlpSink, root: Span) -> list[str]:
    """Return the names of a span's children in order of time."""
    found = [span for span in sink.spans if span.parent_span_id == root.span_id]
    return [span.name for span in sorted(found, key=lambda span: (span.start_time_unix_nano, span.end_time_unix_nano))]


def test_the_first_example_gives_a_request_with_its_stages(tmp_path: Path, sink: OtlpSink) -> None:
    """Four spans, with the tokens that it counted."""
    run(EXAMPLES[0], tmp_path, sink)
    (root,) = [span for span in sink.spans if span.kind == Span.SPAN_KIND_SERVER]
    assert children(sink, root) == ["tokenize", "prefill", "decode"]
    attributes = attributes_of(root.attributes)
    assert attributes[attr.GEN_AI_MODEL] == "mine"
    assert (attributes[attr.GEN_AI_INPUT_TOKENS], attributes[attr.GEN_AI_OUTPUT_TOKENS]) == (2, 2)
    assert attributes[attr.TTFT_NS] > 0


def test_the_batching_loop_gives_requests_steps_and_gaps(tmp_path: Path, sink: OtlpSink) -> None:
    """Three requests over two places: the third waits; every request has its stages, tokens, gaps and batches."""
    printed = run(EXAMPLES[1], tmp_path, sink)
    assert "word1 word2 word3 word4 word5" in printed
    roots = [span for span in sink.spans if span.kind == Span.SPAN_KIND_SERVER]
    assert [span.name for span in roots] == ["chat"] * 3
    by_tokens = {attributes_of(root.attributes)[attr.GEN_AI_OUTPUT_TOKENS]: root for root in roots}
    assert sorted(by_tokens) == [3, 4, 5]
    for tokens, root in by_tokens.items():
        assert set(children(sink, root)) - {"dispatch"} == {
            "tokenize", "queue", "prefill", "decode", "detokenize", "respond"
        }  # fmt: skip
        stages = {span.name: span for span in sink.spans if span.parent_span_id == root.span_id}
        decode = attributes_of(stages["decode"].attributes)
        assert sum(int(pair.split(":")[1]) for pair in decode[attr.ITL_HISTOGRAM].split()) == tokens - 1
        attributes = attributes_of(root.attributes)
        assert attributes["app.tenant"] == "docs"
        e2e_ns = root.end_time_unix_nano - root.start_time_unix_nano
        covered_ns = sum(span.end_time_unix_nano - span.start_time_unix_nano for span in stages.values())
        assert covered_ns + attributes[attr.UNATTRIBUTED_NS] == e2e_ns
        assert 0 < attributes[attr.TTFT_NS] < e2e_ns
    queue = {
        tokens: next(s for s in sink.spans if s.name == "queue" and s.parent_span_id == root.span_id)
        for tokens, root in by_tokens.items()
    }
    waited_ms = {k: (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6 for k, span in queue.items()}
    assert waited_ms[5] >= 11
    assert waited_ms[5] > waited_ms[3]
    steps = [attributes_of(span.attributes) for span in sink.spans if span.name == "step"]
    assert sum(step[attr.STEP_DECODE_TOKENS] for step in steps) == 2 + 3 + 4
    assert sum(step[attr.STEP_PREFILL_TOKENS] for step in steps) == 5 + 3 + 4
    assert max(step[attr.STEP_REQUESTS] for step in steps) == 2
    assert {step[attr.ENGINE_NAME] for step in steps} == {"toy"}


def test_the_captured_step_runs_without_cuda(tmp_path: Path, sink: OtlpSink) -> None:
    """On a CPU the same program calls its function, and each of its steps has the device's time."""
    assert run(EXAMPLES[2], tmp_path, sink) == "torch.Size([4]) False\n"
    steps = [attributes_of(span.attributes) for span in sink.spans if span.name == "step"]
    assert len(steps) == 8
    assert all(step[attr.DEVICE_BUSY_NS] > 0 for step in steps)
