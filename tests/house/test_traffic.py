"""The traffic generator of the benchmarks: what it plants is there, and what it stores is what a collector stores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import truths_decisions
from benchmarks.traffic import aggregates, arrivals, effects, reads, requests, times, truths
from benchmarks.traffic.fleet import FLEET
from tailspan.errors import UserError
from tailspan_queries import catalog
from tailspan_queries.client import connected
from tailspan_queries.compare_read import read_sample
from tailspan_queries.compare_records import REQUEST, TTFT, Group, Sample
from tailspan_queries.fairness import fairness_report
from tailspan_queries.filters import Filters
from tailspan_queries.tail import tail_report
from tailspan_queries.tail_diagnosis import diagnose
from tailspan_queries.times import Window
from tests.support.collector import RunningCollector

REQUESTS = 3000


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up arrival traces in the form of the real ones, which need not be there."""
    folder = tmp_path_factory.mktemp("arrivals")
    draw = np.random.default_rng(3)
    for name in (arrivals.CONV, arrivals.CODE):
        at = np.datetime64("2023-11-16T18:00:00") + np.cumsum(draw.gamma(0.3, 1e9, 2000)).astype("timedelta64[ns]")
        lines = [
            f"{str(moment).replace('T', ' ')[:27]},{prompt},{output}"
            for moment, prompt, output in zip(
                at, draw.lognormal(6, 1, 2000).astype(int) + 1, draw.geometric(0.02, 2000), strict=True
            )
        ]
        (folder / name).write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\n")
    rows = [
        {"timestamp": int(second) * 3000, "input_length": int(prompt), "output_length": int(output), "hash_ids": [0]}
        for second, prompt, output in zip(
            np.sort(draw.integers(0, 300, 900)),
            draw.lognormal(8, 1, 900) + 1,
            draw.geometric(0.005, 900),
            strict=True,
        )
    ]
    (folder / arrivals.MOONCAKE).write_text("\n".join(map(json.dumps, rows)) + "\n")
    return folder


@pytest.fixture
def traced(traces: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The generator reads the made-up traces."""
    monkeypatch.setenv("TAILSPAN_ARRIVALS", str(traces))
    return traces


def test_absent_traces_are_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the arrival traces the error names the file and how to name another folder."""
    monkeypatch.setenv("TAILSPAN_ARRIVALS", str(tmp_path))
    with pytest.raises(UserError, match=r"azure_llm_2023_conv\.csv is absent.*TAILSPAN_ARRIVALS"):
        arrivals.load(arrivals.CONV)


def test_a_replay_keeps_gaps_and_lengths(traced: Path) -> None:
    """Every round of a replay holds the trace's requests with their lengths, in order, and ends in time."""
    trace = arrivals.load(arrivals.CONV)
    found = arrivals.replay(trace, trace.length_s * 2, np.random.default_rng(1))
    assert len(found.at_s) == 2 * len(trace.at_s)
    assert np.all(np.diff(found.at_s) >= 0)
    assert found.at_s[-1] < found.length_s
    pairs = sorted(zip(found.input_tokens.tolist(), found.output_tokens.tolist(), strict=True))
    assert pairs == sorted(2 * list(zip(trace.input_tokens.tolist(), trace.output_tokens.tolist(), strict=True)))


def test_thinning_keeps_the_count_and_goes_by_the_weights(traced: Path) -> None:
    """Exactly as many requests stay as are asked for, and those of no weight go first."""
    found = arrivals.load(arrivals.CONV)
    weights = np.where(np.arange(len(found.at_s)) < 500, 0.0, 1.0)
    kept = arrivals.thin(found, 700, weights, np.random.default_rng(2))
    assert len(kept.at_s) == 700
    assert kept.at_s[0] >= found.at_s[500]


def test_thinning_keeps_as_many_of_each_half(traced: Path) -> None:
    """Both halves of the time keep equally many whatever the weights, and the exact count where one is short."""
    found = arrivals.load(arrivals.CONV)
    late = found.at_s >= found.length_s / 2
    weights = np.where(late, 5.0, 1.0)
    kept = arrivals.thin_halves(found, 301, weights, np.random.default_rng(2))
    assert len(kept.at_s) == 301
    assert int((kept.at_s < found.length_s / 2).sum()) == 150
    assert np.all(np.diff(kept.at_s) >= 0)
    short = int(late.sum())
    most = arrivals.thin_halves(found, 2 * short + 20, weights, np.random.default_rng(2))
    assert len(most.at_s) == min(2 * short + 20, len(found.at_s))


def test_the_queue_is_that_of_a_single_server() -> None:
    """Waiting times equal those of a loop that serves one request after the other."""
    draw = np.random.default_rng(4)
    at_s, service_s = np.cumsum(draw.exponential(1, 500)), draw.exponential(0.9, 500)
    free_s, waits = 0.0, []
    for arrival, service in zip(at_s, service_s, strict=True):
        waits.append(max(0.0, free_s - arrival))
        free_s = max(free_s, arrival) + service
    assert np.allclose(times.lindley_s(at_s, service_s), waits)
    assert max(waits) > 1


@pytest.mark.parametrize(("quantile", "factor"), [(0.5, 1.0), (0.9, 1.0), (0.99, 1.12)])
def test_a_planted_change_moves_its_percentiles_by_its_factors(quantile: float, factor: float) -> None:
    """`shift-12` moves the P99 by 12 % and leaves median and P90."""
    shift = next(truth for truth in truths.PLANTED if truth.name == "shift-12")
    assert isinstance(shift, truths.Change)
    draw = np.random.default_rng(5)
    wall_ns = np.round(draw.lognormal(18, 1, 100_000)).astype(np.int64)
    changed = shift.apply(wall_ns, np.ones(len(wall_ns), bool), draw)
    ratio = np.quantile(changed, quantile) / np.quantile(wall_ns, quantile)
    assert ratio == pytest.approx(factor, rel=1e-4)


def test_the_tail_gets_worse_while_the_middle_gets_better() -> None:
    """`tail-worse` has a lower median and a higher P99, and keeps the order of times."""
    change = next(truth for truth in truths.PLANTED if truth.name == "tail-worse")
    assert isinstance(change, truths.Change)
    wall_ns = np.sort(np.round(np.random.default_rng(6).lognormal(20, 0.8, 50_000)).astype(np.int64))
    changed = change.apply(wall_ns, np.ones(len(wall_ns), bool), np.random.default_rng(7))
    assert np.quantile(changed, 0.5) < 0.8 * np.quantile(wall_ns, 0.5)
    assert np.quantile(changed, 0.99) > 1.3 * np.quantile(wall_ns, 0.99)
    assert np.all(np.diff(changed) >= 0)


def test_a_change_of_mix_keeps_the_rate() -> None:
    """`mix-shift` asks for longer requests after its time, and for as many as before."""
    mix = next(truth for truth in truths.PLANTED if isinstance(truth, truths.Mix))
    draw = np.random.default_rng(8)
    at_ratio = np.linspace(0, 1, 10_000, endpoint=False)
    prompts, outputs = draw.geometric(0.001, 10_000), draw.geometric(0.01, 10_000)
    weights = mix.weights(at_ratio, prompts, outputs)
    before, after = weights[at_ratio < 0.5], weights[at_ratio >= 0.5]
    assert after.sum() == pytest.approx(before.sum())
    assert np.average(prompts[at_ratio >= 0.5], weights=after) > 1.2 * np.average(prompts[at_ratio < 0.5])


def test_traffic_is_exactly_as_large_as_asked_and_the_same_for_its_seed(traced: Path) -> None:
    """The services share all requests, two makings are equal, and another seed gives others."""
    plan = requests.Traffic(REQUESTS, hours=0.5)
    first, second = list(requests.make(plan)), list(requests.make(plan))
    assert sum(len(made.records) for made in first) == REQUESTS
    assert all(np.array_equal(one.records, two.records) for one, two in zip(first, second, strict=True))
    other = next(requests.make(requests.Traffic(REQUESTS, hours=0.5, seed=2)))
    assert not np.array_equal(other.records, first[0].records)


def test_one_worker_is_slow_for_two_percent_of_its_requests(traced: Path) -> None:
    """`slow-worker` is in one stage of one worker and nowhere else."""
    made = next(requests.make(requests.Traffic(50_000, hours=2)))
    slow = made.records["tokenize_ns"] > 5_000_000_000
    at_worker = made.records["worker"] == made.first_worker
    assert not np.any(slow & ~at_worker)
    assert slow[at_worker].mean() == pytest.approx(0.02, abs=0.005)


@dataclass(frozen=True, slots=True)
class Stored:
    """A data set behind a running collector, and the records that it was made from."""

    plan: requests.Traffic
    made: dict[str, requests.Made]
    summary: dict[str, Any]
    collector: RunningCollector

    @property
    def window(self) -> Window:
        """All of its time."""
        return Window(self.plan.begin_ns, aggregates.halves(self.plan)[1].until_ns)


@pytest.fixture(scope="module")
def stored(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    """One hour of all services, made by the command."""
    cache = tmp_path_factory.mktemp("cache")
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "TAILSPAN_ARRIVALS": str(traces)}
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "benchmarks.traffic", str(REQUESTS), "--hours", "1"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    summary = json.loads(done.stdout)
    plan = requests.Traffic(REQUESTS, hours=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAILSPAN_ARRIVALS", str(traces))
        made = {one.service.name: one for one in requests.make(plan)}
    with RunningCollector(Path(summary["clickhouse"]).parent) as collector:
        yield Stored(plan, made, summary, collector)


def test_the_stored_rows_are_the_planned_requests(stored: Stored) -> None:
    """Spans partition each request, the views have filled rollups and index, and truths are written beside them."""
    collector = stored.collector
    assert {truth["name"] for truth in stored.summary["truths"]} >= {
        "control",
        *(truth.name for truth in truths.PLANTED),
    }
    whole = collector.query(
        "select count(), countIf(e2e != stages or last != end) from (select "
        "anyIf(duration_ns - unattributed_ns, role = 'request') as e2e, "
        "sumIf(duration_ns, role = 'stage') as stages, "
        "anyIf(toUnixTimestamp64Nano(start) + duration_ns, role = 'request') as end, "
        "max(toUnixTimestamp64Nano(start) + duration_ns) as last "
        "from tailspan.spans where role in ('request', 'stage') group by trace_id)"
    )
    assert whole == [(REQUESTS, 0)]
    for rollup in ("stage_minutes", "stage_hours"):
        rolled_up = f"select sum(span_count) from tailspan.{rollup} where stage = 'request'"
        assert collector.query(rolled_up) == [(REQUESTS,)], rollup
    assert collector.query("select count() from tailspan.traces where request_count = 1") == [(REQUESTS,)]
    decode_ns = sum(
        int(made.records["decode_ns"].sum() + made.records["resumed_ns"].sum()) for made in stored.made.values()
    )
    found = collector.query("select sum(duration_ns), uniqExact(service) from tailspan.spans where stage = 'decode'")
    assert found == [(decode_ns, len(FLEET))]
    timed = collector.query("select count(), countIf(step_ns <= 0) from tailspan.layers")
    assert timed[0][0] > 0
    assert timed[0][1] == 0


def test_a_sixteenth_of_the_traces_is_in_the_sample(stored: Stored) -> None:
    """`spans_sample` holds the request and stage spans of those traces that its hash chooses, and no other."""
    chosen = "sipHash64(trace_id) % 4096 < 256 and role in ('request', 'stage')"
    counts = stored.collector.query(
        f"select (select count() from tailspan.spans_sample), (select count() from tailspan.spans where {chosen}), "
        "(select uniqExact(trace_id) from tailspan.spans_sample)"
    )
    in_sample, in_spans, sampled = counts[0]
    assert in_sample == in_spans
    assert REQUESTS / 16 * 0.7 < sampled < REQUESTS / 16 * 1.3


def test_a_repetition_without_a_database_judges_what_the_commands_read(stored: Stored) -> None:
    """Both halves of `assistant`, as `compare` reads them, are those that are made of the records."""
    records = stored.made["assistant"].records
    with connected(stored.collector.url) as client:
        for window in aggregates.halves(stored.plan):
            read = read_sample(client, Group((window,), Filters(service="assistant")))
            made = aggregates.sample(records, window)
            assert set(read.parts) == set(made.parts)
            assert (read.size, read.block_count, read.block_ns) == (made.size, made.block_count, made.block_ns)
            for part, found in made.parts.items():
                assert _cells(read, part) == _cells(made, part), part
                assert len(found.wall_ns) > 0


def _cells(sample: Sample, part: str) -> list[tuple[float, ...]]:
    """Return what is known of each request of a part, in an order of its own."""
    found = sample.parts[part]
    columns = (sample.blocks, sample.input_tokens, sample.output_tokens, sample.failed)
    return sorted(zip(*(column[found.requests].tolist() for column in columns), found.wall_ns.tolist(), strict=True))


def test_groups_without_a_database_are_those_of_the_query(stored: Stored) -> None:
    """Every row of `different` but the batch, with its counts by block of time and its stages, is made alike."""
    made = stored.made["chat"]
    with connected(stored.collector.url) as client:
        parameters = {**stored.window.parameters, **Filters(service="chat").parameters, "slowest": 0.05}
        read = {(row["attribute"], row["value"]): row for row in client.run("different", parameters).records()}
    rows = aggregates.different_rows(made.records, made.service, made.first_worker, stored.plan, 0.05)
    for row in rows:
        if row["attribute"] == "batch":
            continue
        found = read[row["attribute"], row["value"]]
        for name in ("kept_requests", "kept_slow", "requests", "slow_requests", "squared_weight", "block_requests"):
            assert found[name] == row[name], (row["attribute"], row["value"], name)
        assert found["block_slow"] == row["block_slow"]
        assert found["threshold_ns"] == pytest.approx(row["threshold_ns"])
        theirs, ours = (
            dict(zip(one["stages"], zip(one["stage_sum_ns"], one["slow_sum_ns"], strict=True), strict=True))
            for one in (found, row)
        )
        assert {stage: theirs.get(stage, (0, 0)) for stage in ours} == {
            stage: pytest.approx(sums) for stage, sums in ours.items()
        }
        # Even numbers are slow requests.
        assert sum(number % 2 == 0 for number in found["members"]) == sum(number % 2 == 0 for number in row["members"])
    made_keys = {(row["attribute"], row["value"]) for row in rows}
    tested = {key for key, row in read.items() if row["kept_requests"] < len(made.records) and key[0] != "batch"}
    others = tested - made_keys
    assert not others


def test_classes_without_a_database_are_those_of_the_query(stored: Stored) -> None:
    """The waits of `batch` by priority, and their longest by block of time, are those of `tailspan fairness`."""
    with connected(stored.collector.url) as client:
        read = fairness_report(client, stored.window, Filters(service="batch"), waits=0)
    made = aggregates.fairness_report(stored.made["batch"].records, stored.plan)
    assert len(made.classes) == 2
    for theirs, ours in zip((read.everyone, *read.classes), (made.everyone, *made.classes), strict=True):
        assert theirs is not None
        assert ours is not None
        for name in ("key", "requests", "wait_max_ns", "before_requests", "after_requests"):
            assert getattr(theirs, name) == getattr(ours, name), name
        for name in ("wait_p50_ns", "wait_p99_ns", "long_ratio", "before_p50_ns", "before_p99_ns", "after_p99_ns"):
            assert getattr(theirs, name) == pytest.approx(getattr(ours, name)), name
        assert theirs.before_blocks_ns == pytest.approx(ours.before_blocks_ns)
        assert theirs.after_blocks_ns == pytest.approx(ours.after_blocks_ns)


def test_the_tail_without_a_database_is_that_of_the_query(stored: Stored) -> None:
    """Shares of mean and tail, and with them the diagnosis, are those of `tailspan tail`."""
    with connected(stored.collector.url) as client:
        read = tail_report(client, stored.window, Filters(service="chat"))
    made = aggregates.tail_report(stored.made["chat"].records, stored.plan)
    theirs, ours = ({row.stage: row for row in report.rows} for report in (read, made))
    for stage, row in theirs.items():
        assert row.share_ratio == pytest.approx(ours[stage].share_ratio), stage
        assert row.tail_share_ratio == pytest.approx(ours[stage].tail_share_ratio), stage
    assert read.diagnosis == diagnose(made)
    assert read.diagnosis


def test_the_tables_that_a_question_reads_are_told(stored: Stored) -> None:
    """Those with something left to read, of a query and of a whole command; a table that the plan rules out is not."""
    parameters = stored.window.parameters
    with connected(stored.collector.url) as client:
        assert reads.tables(client, [(catalog.load("stages_rollup"), parameters)]) == ["stage_hours"]
        since, until = (parameters[name].replace(" ", "T") + "Z" for name in ("since", "until"))
        words = ["tail", "--since", since, "--until", until, "--url", stored.collector.url]
        assert {"spans", "stage_minutes"} <= set(reads.of_command(client, words))


def test_only_changed_parts_are_compared_again(traced: Path) -> None:
    """A comparison whose other lines are taken over is the comparison of everything."""
    service = next(service for service in FLEET if service.name == "summarize")
    plan, without = truths_decisions.traffic(service, 1500, 3)
    records = truths_decisions.changed(plan, without, "shift-12")
    assert np.any(records["prefill_ns"] != without["prefill_ns"])
    base = truths_decisions.compared(plan, without)
    again = truths_decisions.again(base, plan, records, "prefill", TTFT, REQUEST)
    whole = truths_decisions.compared(plan, records)
    assert {(line.part, line.statistic): line for line in again.lines} == {
        (line.part, line.statistic): line for line in whole.lines
    }
    assert set(again.findings) == set(whole.findings)


def test_the_effect_of_a_truth_is_written_down(traced: Path) -> None:
    """The note of a truth has the percentiles of its stage before and after it, as NumPy has them."""
    plan = requests.Traffic(20_000, hours=2)
    made = next(made for made in requests.make(plan) if made.service.name == "assistant")
    (note,) = effects.effects(plan, made)
    middle_ns = plan.begin_ns + 3_600_000_000_000
    before = made.records[made.records["start_ns"] < middle_ns]
    decode_ns = before["decode_ns"][before["decode_ns"] > 0].astype(np.int64)
    assert note["since_ns"] == middle_ns
    assert note["before"]["requests"] == len(before)
    assert note["before"]["decode"]["p99"] == pytest.approx(np.percentile(decode_ns, 99))
