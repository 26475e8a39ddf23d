"""`vllm serve` under 100 mixed requests: every one a trace, with stages that add up to what its client measured."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tailspan import attributes as attr
from tests.support.otlp_sink import attributes_of
from tests.vllm.running import VllmServer, serve
from tests.vllm.scenario import Seen, plan, run

TOLERANCE_MS, TOLERANCE = 5.0, 0.02
"""How far the spans may be from the client's own clock: 5 ms or 2 %, whichever is more."""
BLOCKS = 9
"""KV blocks of 128 tokens: eight requests at once do not fit, so some are preempted."""


@pytest.fixture(scope="module")
def small(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A server with a small KV cache and a small token budget, so that prompts are cut into chunks."""
    sizes = ("--max-model-len=512", "--max-num-batched-tokens=64", f"--num-gpu-blocks-override={BLOCKS}")
    folder = tmp_path_factory.mktemp("small")
    with serve(model_folder, folder, *sizes, "--enable-request-id-headers", TAILSPAN_SERVER_TIMING="1") as running:
        yield running


@pytest.fixture(scope="module")
def seen(small: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> list[Seen]:
    """Both sides of every request."""
    return run(small, plan(), tmp_path_factory.mktemp("load"))


def _plain(seen: list[Seen]) -> list[Seen]:
    return [item for item in seen if item.asked.kind == "plain"]


def test_one_trace_for_each_request_under_its_caller(seen: list[Seen]) -> None:
    """Each has exactly one request span, SERVER, whose parent is the client's; all stages are its children."""
    for item in seen:
        roots = [span for span in item.spans if span.kind == Span.SPAN_KIND_SERVER]
        assert roots == [item.root]
        assert all(span.parent_span_id == item.root.span_id for span in item.spans if span is not item.root)


def test_status_and_ids(seen: list[Seen]) -> None:
    """Answers are ok, invalid requests 400 and not an error of the server, hang-ups an error of that name."""
    for item in seen:
        if item.asked.kind == "invalid":
            assert item.client["status"] == item.attributes[attr.HTTP_STATUS] == 400
            assert item.root.status.code == Status.STATUS_CODE_UNSET
            continue
        assert item.attributes[attr.GEN_AI_RESPONSE_ID] == f"chatcmpl-mine-{item.asked.number}"
        assert item.attributes[attr.GEN_AI_STREAM] is item.asked.stream
        if item.asked.kind == "disconnect":
            assert item.attributes[attr.OUTCOME] == "client_disconnect"
            assert item.root.status.code == Status.STATUS_CODE_ERROR
        else:
            assert item.attributes[attr.OUTCOME] == "ok"
            assert item.attributes[attr.GEN_AI_OUTPUT_TOKENS] == item.asked.tokens


def test_all_stages(seen: list[Seen]) -> None:
    """An answered request has every stage, in order; one that was refused ends before the queue."""
    for item in seen:
        names = [span.name for span in item.stages]
        if item.asked.kind == "invalid":
            assert set(names) <= {"receive", "tokenize", "respond"}
        elif item.asked.kind == "plain":
            whole = ["receive", "tokenize", "dispatch", "queue", "prefill", "decode", "detokenize", "respond"]
            assert list(dict.fromkeys(name for name in names if name != "preempted")) == whole
        for before, after in zip(item.stages, item.stages[1:], strict=False):
            assert before.end_time_unix_nano <= after.start_time_unix_nano


def test_the_engine_did_what_the_load_was_made_for(small: VllmServer, seen: list[Seen]) -> None:
    """Prompts were cut into chunks, prefixes found again, requests preempted; steps say so too."""
    stages = [attributes_of(span.attributes) | {"name": span.name} for item in seen for span in item.stages]
    assert max(stage.get(attr.PREFILL_CHUNKS, 0) for stage in stages) > 1
    assert max(stage.get(attr.CACHED_TOKENS, 0) for stage in stages) >= 128
    preempted = sum(stage["name"] == "preempted" for stage in stages)
    assert preempted > 0
    steps = [attributes_of(span.attributes) for span in small.sink.spans]
    steps = [step for step in steps if step.get(attr.ROLE) == attr.ROLE_STEP]
    assert sum(step[attr.STEP_PREEMPTED] for step in steps) >= preempted
    assert max(step[attr.STEP_KV_USAGE] for step in steps) > 0.8
    assert any(step[attr.STEP_PREFILL_TOKENS] and step[attr.STEP_DECODE_TOKENS] for step in steps)
    assert max(step[attr.STEP_WAITING] for step in steps) > 0


def test_steps_tell_what_the_model_took(small: VllmServer, seen: list[Seen]) -> None:
    """The worker's forward pass and sampling are within each step, and most of it."""
    assert seen
    shares = []
    for span in small.sink.spans:
        step = attributes_of(span.attributes)
        if step.get(attr.ROLE) == attr.ROLE_STEP:
            wall_ns = span.end_time_unix_nano - span.start_time_unix_nano
            model_ns = step[attr.STEP_EXECUTE_NS] + step[attr.STEP_SAMPLE_NS]
            assert 0 < step[attr.STEP_SAMPLE_NS] < model_ns < wall_ns
            shares.append(model_ns / wall_ns)
    assert statistics.median(shares) > 0.5


def test_stages_explain_the_time(seen: list[Seen]) -> None:
    """At most 1 % of a request is unattributed at the median, 5 % at p99."""
    shares = sorted(item.unattributed for item in _plain(seen))
    assert statistics.median(shares) <= 0.01
    assert shares[round(0.99 * (len(shares) - 1))] <= 0.05


def test_times_agree_with_the_client(seen: list[Seen], capsys: pytest.CaptureFixture[str]) -> None:
    """End-to-end, TTFT and mean ITL are within 5 ms or 2 % of the client's own clock, nine times of ten.

    The tenth allows for a machine where the client waits for a core.
    """
    plain = _plain(seen)
    streamed = [item for item in plain if item.asked.stream]
    pairs = {
        "e2e": [(item.e2e_ms, item.client_e2e_ms) for item in plain],
        "TTFT": [(item.ttft_ms, item.client_ttft_ms) for item in plain],
        "ITL": [(item.itl_ms, item.client_itl_ms) for item in streamed if item.asked.tokens > 4],
    }
    with capsys.disabled():
        print(f"\n{'':6}{'requests':>9}{'client p50':>12}{'ours p50':>10}{'difference p50':>16}{'p90':>8}{'p99 ms':>8}")
        for name, values in pairs.items():
            differences = sorted(abs(client - ours) for ours, client in values)
            print(
                f"{name:6}{len(values):>9}{statistics.median(client for _, client in values):>12.1f}"
                f"{statistics.median(ours for ours, _ in values):>10.1f}{statistics.median(differences):>16.2f}"
                f"{differences[round(0.9 * (len(values) - 1))]:>8.2f}{differences[-1]:>8.2f}"
            )
        shares = sorted(item.unattributed for item in plain)
        print(f"unattributed: median {statistics.median(shares):.3%}, largest {shares[-1]:.3%}")
    for name, values in pairs.items():
        near = [abs(client - ours) <= max(TOLERANCE_MS, TOLERANCE * client) for ours, client in values]
        assert sum(near) >= 0.9 * len(near), (name, values)


def test_callers_are_told_their_times(seen: list[Seen]) -> None:
    """A whole answer has `Server-Timing`, a stream that asked a last block; both agree with the stages."""
    told = 0
    for item in _plain(seen):
        if item.asked.stream:
            found = dict(re.findall(r'"(queue|prefill|decode)_ms":([\d.]+)', item.client["tail"]))
        else:
            found = dict(re.findall(r"(queue|prefill|decode);dur=([\d.]+)", item.client["server_timing"]))
        assert set(found) == {"queue", "prefill", "decode"}, item.client
        if any(span.name == "preempted" for span in item.stages):
            continue
        for stage in ("queue", "prefill", "decode"):
            spans = [span for span in item.stages if span.name == stage]
            wall_ms = sum(span.end_time_unix_nano - span.start_time_unix_nano for span in spans) / 1e6
            told += abs(float(found[stage]) - wall_ms) <= max(TOLERANCE_MS, TOLERANCE * wall_ms)
    not_preempted = sum(all(span.name != "preempted" for span in item.stages) for item in _plain(seen))
    assert told >= 0.9 * 3 * not_preempted
