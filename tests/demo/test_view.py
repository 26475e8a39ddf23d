"""What the demo prints, from a result whose numbers are known."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tailspan.cli import COMMANDS
from tailspan_queries.console import plain
from tailspan_queries.demo.agreement import Agreement, Comparison
from tailspan_queries.demo.reports import Reports, Scheduling
from tailspan_queries.demo.session import DemoResult, Options
from tailspan_queries.demo.view import DEFAULT_DATA, demo_json, next_commands, render_demo
from tailspan_queries.filters import ALL
from tailspan_queries.layers_records import Contribution, ContributionReport
from tailspan_queries.records import EXACT, StageReport, Tail
from tailspan_queries.times import Window

MS = 1_000_000
SCHEDULING = Scheduling(
    steps=392,
    mixed_steps=80,
    requests_mean=4.94,
    requests_max=12,
    waiting_max=15,
    kv_usage_max_ratio=0.97,
    prompts=100,
    prompt_tokens=7815,
    cached_tokens=832,
    chunked_prompts=33,
    chunks_max=4,
    evictions=6,
    evicted_requests=5,
)

WINDOW = Window(1_700_000_000_000_000_000, 1_700_000_060_000_000_000)


def contribution(what: str, kind: str, mean_ns: float) -> Contribution:
    """Return one line of what end-to-end time consists of, 10 ms in all."""
    share = mean_ns / (10 * MS)
    return Contribution(what, "", None, kind, mean_ns, share, 0.0, mean_ns, mean_ns, share, 1, 1, 1, 1.0)


PARTS = ContributionReport(
    WINDOW,
    ALL,
    "kind",
    (
        contribution("part", "attention", 6 * MS),
        contribution("part", "mlp", 3 * MS),
        contribution("between", "", 1 * MS),
        contribution("request", "", 10 * MS),
    ),
)


@pytest.fixture
def result() -> DemoResult:
    """Return a run of two requests, of which one has no trace."""
    comparison = Comparison(1, 2.0 * MS, 3.0 * MS, 4.0 * MS, 0.01, 0.015, 0.019, 0)
    agreement = Agreement(
        requests=2,
        failed=0,
        traces=1,
        exactly_one_trace=1,
        missing=("ab" * 16,),
        doubled=(),
        strangers=0,
        network_ns_p50=0.5 * MS,
        unattributed_ratio_p50=0.001,
        unattributed_ratio_p99=0.021,
        overlap_ns_max=0,
        begin_ns_p50=1.0 * MS,
        begin_ns_max=9.0 * MS,
        ttft=comparison,
        e2e=comparison,
    )
    stages = StageReport(WINDOW, ALL, EXACT, 1, (), Tail(0.99, 1, 5.0 * MS, 5.0 * MS), diagnosis="queue is 71 % of it.")
    options = Options(requests=2, rate_per_s=2.0, seed=1, data=Path("/data folder"))
    reports = Reports(stages, SCHEDULING, PARTS, None)
    return DemoResult(options, "vLLM 0.32.0", WINDOW, agreement, reports, ("HTTP 500",), 1.5)


def printed(result: DemoResult) -> str:
    """Return the demo's output as text on one long line per line."""
    console = Console(file=io.StringIO(), width=400)
    console.print(render_demo(result, 100))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def unpadded(result: DemoResult) -> str:
    """Return the demo's output without the spaces that fill its lines."""
    return "\n".join(line.rstrip() for line in printed(result).splitlines())


def test_a_missing_trace_cannot_be_overlooked(result: DemoResult) -> None:
    """The sentence counts, and names the trace ids to look for."""
    text = printed(result)
    assert "1 of 2 requests sent have exactly one trace; 1 without a trace: abab" in text
    assert "! a request failed: HTTP 500" in text


def test_the_proof_states_its_numbers(result: DemoResult) -> None:
    """Unexplained share, network share, begin and both comparisons are printed with their units."""
    text = printed(result)
    assert "0.10% unexplained at the median and 2.10% at p99" in text
    assert "500 µs at the median" in text
    assert "9.00 ms at most" in text
    assert [line.split()[:3] for line in text.splitlines() if line.startswith("TTFT")] == [["TTFT", "1", "2.00"]]


def test_the_next_commands_can_be_pasted(result: DemoResult, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data folder with a space is quoted, and the default folder needs no option."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert "  tailspan up --data '/data folder'\n" in unpadded(result)
    default = replace(result.options, data=DEFAULT_DATA.absolute())
    assert "  tailspan up\n" in unpadded(replace(result, options=default))


def test_the_next_commands_exist(result: DemoResult) -> None:
    """Every command that is proposed is one of tailspan's."""
    proposed = [line.split()[1] for line in next_commands(result).splitlines() if line.startswith("  ")]
    assert {"up", "stages", "preemption"} <= set(proposed) <= COMMANDS.keys()


def test_what_the_scheduler_did_is_told(result: DemoResult) -> None:
    """Batches, chunked prefills, prefix-cache hits and evictions each have their numbers."""
    text = printed(result)
    assert "vLLM 0.32.0 made 392 steps with 4.9 requests on average and 12 at most; 80 of them" in text
    assert "Up to 15 requests waited, and the KV cache was up to 97 % full." in text
    assert "Of 7,815 prompt tokens 832 (11 %) came from the prefix cache; 33 of 100 prompts were computed in" in text
    assert "5 of 100 requests, 6 times in all." in text


def test_the_parts_of_the_model_are_told(result: DemoResult) -> None:
    """Each has its mean and its share of the requests' time; without sampled steps there is no such table."""
    lines = printed(result).splitlines()
    assert [line.split()[:4] for line in lines if line.startswith("attention")] == [
        ["attention", "6.00", "ms", "60.0%"]
    ]
    assert "the parts of the model are 90 % of end-to-end time" in printed(result)
    without = replace(result, reports=replace(result.reports, contribution=ContributionReport(WINDOW, ALL, "kind", ())))
    assert "Which parts of the model" not in printed(without)


def test_a_scheduler_with_nothing_to_tell_claims_nothing(result: DemoResult) -> None:
    """Without chunks, evictions or a known cache the sentences say so, and no eviction is offered to look at."""
    quiet = replace(SCHEDULING, kv_usage_max_ratio=0.0, chunked_prompts=0, evictions=0, evicted_requests=0)
    found = replace(result, reports=replace(result.reports, scheduling=quiet))
    text = printed(found)
    assert "every prompt was computed in one step." in text
    assert "No request was evicted." in text
    assert "KV cache" not in text
    assert "tailspan preemption" not in text


def test_a_command_that_the_shell_does_not_find_is_shown_with_its_path(
    result: DemoResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started through make, the environment is not on PATH: the path from here is printed."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(Path(sys.executable).parent.parent)
    assert "  bin/tailspan stages --since" in printed(result)


def test_json_carries_what_machines_ask_for(result: DemoResult) -> None:
    """The documented keys are there and the object is valid JSON."""
    found = json.loads(json.dumps(plain(demo_json(result)), allow_nan=False))
    assert (found["requests"], found["traces"]) == (2, 1)
    assert found["unattributed_ratio"] == {"p50": 0.001, "p99": 0.021}
    assert found["client_agreement"]["ttft_ratio_p99"] == found["client_agreement"]["e2e_ratio_p99"] == 0.015
    assert found["client_agreement"]["holds"] is False
    assert found["diagnosis"] == "queue is 71 % of it."
    assert found["engine"]["name"] == "vLLM 0.32.0"
    assert found["engine"]["evictions"] == 6
    assert {"stages", "slowest", "load", "data", "window"} <= found.keys()
