"""Every number on the page is the one that a command prints."""

import contextlib
import io
import json
import shlex
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailspan.cli import main
from tailspan_queries.client import Client
from tailspan_queries.report.answers import Answers, gather
from tests.queries import traffic
from tests.queries.report import page_traffic
from tests.queries.report.page_traffic import WINDOW
from tests.queries.report.reading import Page, read_page
from tests.support.collector import RunningCollector, run_tailspan

QUANTILES = ("p50", "p90", "p95", "p99", "p999")
Ask = Callable[[str], Any]


@pytest.fixture(scope="session")
def ask(store: RunningCollector) -> Ask:
    """Return what a command prints as JSON."""

    def run(line: str) -> Any:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            code = main([*shlex.split(line)[1:], "--format", "json", "--url", store.url])
        # `tailspan regress` says with 1 that something regressed.
        assert code in (0, 1)
        return json.loads(printed.getvalue())

    return run


@pytest.fixture(scope="session")
def sent() -> list[page_traffic.Sent]:
    """The requests of the incident."""
    return page_traffic.incident(WINDOW, page_traffic.REQUESTS, 1, broken=True)


def same(found: list[str | None], expected: list[float | None]) -> None:
    """Check the cells of a line; what threads add up in any order may differ in its last digits."""
    assert len(found) == len(expected)
    for cell, value in zip(found, expected, strict=True):
        if value is None:
            assert cell == "–"  # noqa: RUF001 (as tables have it)
        else:
            assert float(cell or "nan") == pytest.approx(value, rel=1e-9)


def commands(page: Page, section: str) -> list[str]:
    """Return the commands that a section names."""
    lines = page.sections[section].split("The same numbers:")[1].splitlines()
    return [line for line in lines if line.startswith("tailspan ")]


def test_percentiles_of_stages_are_those_of_stages(page: Page, ask: Ask) -> None:
    """Count, percentiles and maximum of every stage, from the command that the section names."""
    (command,) = commands(page, "percentiles")
    told = ask(command)
    table = page.table("percentiles", "Percentiles of every stage")
    assert list(table) == [row["stage"] for row in told["stages"]]
    for row in told["stages"]:
        same(table[row["stage"]], [row["count"], *(row["wall_ns"][name] for name in (*QUANTILES, "max"))])
    assert told["diagnosis"].casefold() in page.header.casefold()


def test_shares_are_those_of_tail(page: Page, ask: Ask) -> None:
    """Means and shares of mean, tail and variance."""
    (command,) = commands(page, "where")
    told = ask(command)
    table = page.table("where", "Shares of every stage")
    names = ("mean_ns", "share_ratio", "tail_mean_ns", "tail_share_ratio", "variance_share_ratio")
    for row in told["rows"]:
        same(table[row["stage"]], [row[name] for name in names])
    assert len(table) == len(told["rows"]) > 8


def test_token_times_tiles_and_histograms_are_those_of_latency(page: Page, ask: Ask) -> None:
    """TTFT, ITL, TPOT and end-to-end time; the tiles hold some of them; bars add up to the counts."""
    command, buckets = commands(page, "tokens")
    (row,) = ask(command)["rows"]
    table = page.table("tokens", "TTFT, ITL, TPOT and end-to-end time")
    titles = {"TTFT": "ttft", "ITL": "itl", "TPOT": "tpot", "end-to-end": "e2e"}
    assert set(table) == set(titles)
    for title, metric in titles.items():
        names = ("count", "mean", *QUANTILES, "max")
        same(table[title], [row[f"{metric}_ns"][name] for name in names])
    tiles = {"End-to-end": "e2e", "First token (TTFT)": "ttft", "Between tokens (ITL)": "itl"}
    for title, metric in {**tiles, "Time per output token (TPOT)": "tpot"}.items():
        same(page.tiles[title], [row[f"{metric}_ns"][name] for name in ("p50", "p95", "p99")])
    same(page.tiles["Requests"], [row["requests"]])
    same(page.tiles["Failed"], [row["error_count"]])
    same(page.tiles["Output tokens a second"], [row["output_tokens_per_s"]])
    bars = page.tables["tokens", "Bars of the histograms"]
    told = [found for found in ask(buckets)["rows"] if found["metric"] != "e2e"]
    for line, found in zip(bars, told, strict=True):
        assert line[0][0] == found["metric"]
        same([value for _, value in line[1:]], [found["low_ns"], found["high_ns"], found["count"]])
    counted = {metric: sum(found["count"] for found in told if found["metric"] == metric) for metric in ("ttft", "itl")}
    assert counted == {"ttft": row["ttft_ns"]["count"], "itl": row["itl_ns"]["count"]}


def test_the_series_is_that_of_latency_over_time(page: Page, ask: Ask) -> None:
    """Each bucket's rates, failures and percentiles."""
    (command,) = commands(page, "series")
    assert "--over 1m" in command
    told = ask(command)["rows"]
    lines = page.tables["series", "Every bucket of time"]
    for line, row in zip(lines, told, strict=True):
        rates = [row["requests"], row["requests_per_s"], row["error_count"], row["output_tokens_per_s"]]
        times = [row[f"{metric}_ns"][name] for metric in ("e2e", "ttft") for name in ("p50", "p99")]
        same([value or words for words, value in line[1:]], [*rates, *times, row["itl_ns"]["p99"]])


def test_layers_and_slowest_are_those_of_their_commands(page: Page, ask: Ask) -> None:
    """Device times of parts, and the slowest requests."""
    layers = ask(commands(page, "layers")[0])
    table = page.table("layers", "Device time of the parts, the largest first")
    for row in layers["rows"]:
        name = row["kind"] if row["layer"] is None else f"{row['layer']}/{row['kind']}"
        times = [row[column] for column in ("step_count", "p50_ns", "p99_ns", "mean_ns")]
        same(table[name][1:], [*times, row["share_ratio"], row["deviation_ratio"]])
        assert table[name][0] == "llama-6"
    assert layers["diagnosis"] in page.sections["layers"]
    slowest = ask(commands(page, "slowest")[0])["requests"]
    listed = page.table("slowest", "Slowest requests")
    assert list(listed) == [row["trace_id"] for row in slowest]
    for row in slowest:
        columns = ("e2e_ns", "ttft_ns", "input_tokens", "output_tokens")
        same(listed[row["trace_id"]][1:5], [row[column] for column in columns])


def test_findings_are_those_of_different(page: Page, hostile_text: str, ask: Ask) -> None:
    """Groups that are over-represented among the slow requests, with their numbers, or that there is none."""
    told = ask(commands(page, "different")[0])
    assert told["diagnosis"].casefold() in page.sections["different"].casefold()
    planted = read_page(hostile_text)
    told = ask(commands(planted, "different")[0])
    assert told["diagnosis"].casefold() in planted.sections["different"].casefold()
    first = told["findings"][0]
    columns = ("slow_share_ratio", "share_ratio", "times", "times_low")
    (_, *cells) = planted.tables["different", "Groups over-represented among the slowest 1 %"][0]
    same([value for _, value in cells[:4]], [first[column] for column in columns])


def test_regressions_and_optimisations_are_those_of_their_commands(page: Page, ask: Ask) -> None:
    """What got slower than the day before, and what each entry of the ledger brought."""
    told = ask(commands(page, "regression")[0])
    said = page.sections["regression"].casefold()
    assert all(alarm.casefold() in said for alarm in told["alarms"])
    assert any(alarm.startswith("queue p99 regressed by") for alarm in told["alarms"])
    table = page.table("regression", "Same hours of previous days, same mix of lengths")
    known = [row for row in told["findings"] if row["part"] in table]
    assert len(known) > 5
    for row in known:
        same(table[row["part"]][1:4], [row["adjusted_ns"], row["after_ns"], row["change_ratio"]])
    (account, _) = ask(commands(page, "changes")[1])["accounts"]
    (effect,) = account["effects"]
    measured = page.table("changes", "Optimisations: measured")
    names = ("before_ns", "after_ns", "improvement_ratio", "gain_low_ns", "contribution_low_ratio")
    same(measured["smaller batches for long prompts"][1:6], [effect[name] for name in names])
    same(measured["whole request"][1:3], [account["total_before_ns"], account["total_after_ns"]])


def test_versions_and_changes_are_those_that_were_sent(page: Page, sent: list[page_traffic.Sent]) -> None:
    """Three versions with their first requests; both deployments and the optimisation are marked in the series."""
    lines = page.tables["changes", "Versions"]
    for line, version in zip(lines, ("1.8.3", "1.9.0", "1.9.1"), strict=True):
        starts = [item.request.start_ns for item in sent if item.version == version]
        assert (line[1][0], int(line[2][1] or 0)) == (version, len(starts))
        assert int(line[3][1] or 0) == pytest.approx(min(starts), abs=1000)
    words = page.sections["series"]
    assert "chat: version 1.8.3 → 1.9.0" in words
    assert "chat: version 1.9.0 → 1.9.1" in words
    assert "smaller batches for long prompts (queue)" in words


def test_times_are_those_that_were_sent(page: Page, sent: list[page_traffic.Sent]) -> None:
    """The median on the page is that of the traffic, so that page and commands are not wrong alike."""
    same(page.tiles["End-to-end"][:1], [statistics.median(item.request.e2e_ns for item in sent)])


def test_filters_are_in_the_commands(store: RunningCollector, sent: list[page_traffic.Sent], tmp_path: Path) -> None:
    """A page about one model says so, its commands repeat the filter, and its numbers are of that model."""
    window = ("--since", "2026-11-29T12:00Z", "--until", "2026-11-29T12:59:59.5Z")
    file = tmp_path / "page.html"
    done = run_tailspan("report", "-o", str(file), *window, "--model", "qwen-small", "--url", store.url)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(f"tailspan: wrote {file} (")
    page = read_page(file.read_text(encoding="utf-8"))
    assert page.tiles["Requests"] == [str(sum(item.request.model == "qwen-small" for item in sent))]
    (command,) = commands(page, "where")
    assert command == ("tailspan tail --since 2026-11-29T12:00:00Z --until 2026-11-29T13:00:00Z --model qwen-small")
    lone = ("--since", "2026-12-03T17:00Z", "--until", "2026-12-03T18:00Z")
    missing = run_tailspan("report", "-o", str(tmp_path / "no" / "page.html"), *lone, "--url", store.url)
    assert missing.returncode == 2
    assert "cannot write" in missing.stderr


def test_a_long_window_is_drawn_in_few_buckets(client: Client, answers: Answers) -> None:
    """Of years, the last 180 days are drawn by the day."""
    years = gather(client, page_traffic.Window(0, traffic.BEGIN_NS + 3 * page_traffic.DAY_NS), answers.filters)
    assert years.series.grouping.step_seconds == 86_400
    assert years.series.window.until_ns - years.series.window.since_ns <= 180 * page_traffic.DAY_NS
    assert sum(row.requests for row in years.series.rows) == years.requests
