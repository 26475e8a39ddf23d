"""`tailspan compare` on spans in ClickHouse: what it reads, and what it prints."""

import csv
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tailspan import attributes
from tailspan.cli import main
from tailspan_queries.client import Client, connect
from tailspan_queries.compare import compare, compare_groups
from tailspan_queries.compare_read import last_id, read_sample
from tailspan_queries.compare_records import REQUEST, Group, Line
from tailspan_queries.compare_view import COLUMNS
from tailspan_queries.filters import Filters
from tailspan_queries.times import Window, iso
from tests.queries import compare_traffic as made
from tests.queries.compare_traffic import HOUR_NS, Truth
from tests.queries.traffic import BEGIN_NS
from tests.support.collector import RunningCollector, wait_until

SNAPSHOTS = Path(__file__).parent / "snapshots"
SERVICE = {attributes.SERVICE_NAME: "chat", attributes.SERVICE_INSTANCE: "worker-0"}
HOURS = {
    "base": (0, Truth(count=1200)),
    "tail": (1, Truth(count=1200, factors={"decode": 0.8}, slow_ratio=0.03, slow_factor=150)),
    "few": (3, Truth(count=40)),
    "one": (4, Truth(count=1)),
    "weighted": (5, Truth(count=300)),
}
VERSIONS_HOUR = 6
COUNTED_HOUR, CANARY_HOUR = 8, 9
EMPTY_HOUR = 12


def window(hour: int) -> Window:
    """Return one hour."""
    return Window(BEGIN_NS + hour * HOUR_NS, BEGIN_NS + (hour + 1) * HOUR_NS)


def span(hour: int) -> str:
    """Return one hour as the command takes it."""
    return f"{iso(window(hour).since_ns)}..{iso(window(hour).until_ns)}"


@dataclass(frozen=True, slots=True)
class Filled:
    """A ClickHouse and what was sent to it, by name."""

    client: Client
    url: str
    traffic: dict[str, made.Traffic]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    """A collector that holds one hour of each truth, and an hour of two versions side by side."""
    found = {
        name: made.make(truth, BEGIN_NS + hour * HOUR_NS, number)
        for number, (name, (hour, truth)) in enumerate(HOURS.items())
    }
    found["weighted"] = replace(found["weighted"], weights=np.tile([1.0, 4.0, 2.5], 100))
    spans = {name: list(made.spans(items, number)) for number, (name, items) in enumerate(found.items())}
    messages = [made.message(group, SERVICE) for group in spans.values()]
    count = sum(len(group) for group in spans.values())
    for number, (version, factor) in enumerate((("1.2", 1.0), ("1.3", 1.3))):
        begin_ns = BEGIN_NS + VERSIONS_HOUR * HOUR_NS
        items = made.make(Truth(count=500, factors={"decode": factor}), begin_ns, 50)
        found[version] = items
        group = list(made.spans(items, 60 + number, {"user.tier": "gold", "user.shard": number}))
        messages.append(made.message(group, {**SERVICE, "service.version": version}))
        count += len(group)
    for name, hour, size, keys, prefix in (
        ("counted", COUNTED_HOUR, 400, {}, bytes(6)),
        ("stable", CANARY_HOUR, 400, {}, b""),
        ("canary", CANARY_HOUR, 40, {"user.canary": 1}, b""),
    ):
        found[name] = made.make(Truth(count=size), BEGIN_NS + hour * HOUR_NS, size)
        group = list(made.spans(found[name], size + hour, keys, prefix))
        messages.append(made.message(group, SERVICE))
        count += len(group)
    with RunningCollector(tmp_path_factory.mktemp("compare") / "data", "--batch-seconds", "0.2") as collector:
        collector.export(*messages)
        assert collector.wait_rows(count) == count
        requests = sum(len(items.start_ns) for items in found.values())
        rolled_up = "select sum(span_count) from tailspan.stage_minutes where stage = 'request'"
        assert wait_until(lambda: collector.query(rolled_up)[0][0], lambda count: count >= requests) == requests
        client = connect(collector.url)
        yield Filled(client, collector.url, found)
        client.close()


@pytest.mark.parametrize("name", list(HOURS))
def test_what_is_read_is_what_was_sent(filled: Filled, name: str) -> None:
    """Times, tokens, weights and blocks of every request come back, each part by the request that it belongs to."""
    hour, _ = HOURS[name]
    sent = made.sample(filled.traffic[name], BEGIN_NS + hour * HOUR_NS)
    read = read_sample(filled.client, Group((window(hour),)))
    assert (read.size, read.block_count, read.block_ns, read.kept_ratio) == (sent.size, 30, sent.block_ns, 1)
    assert set(read.parts) == set(sent.parts)
    columns = ("blocks", "weights", "input_tokens", "output_tokens")
    rows = []
    for sample in (sent, read):
        walls = {}
        for part, times in sample.parts.items():
            walls[part] = np.full(sample.size, -1.0)
            walls[part][times.requests] = times.wall_ns
        lines = zip(
            *(getattr(sample, column) for column in columns), *(walls[part] for part in sorted(walls)), strict=True
        )
        rows.append(sorted(tuple(map(float, line)) for line in lines))
    assert rows[0] == rows[1]
    assert [line.before_ns for line in compare(read, read).lines] == pytest.approx(
        [line.before_ns for line in compare(sent, sent).lines]
    )


def test_of_many_requests_a_sample_is_read(filled: Filled) -> None:
    """Above the limit whole requests are read, about as many as asked for, and they stand for all."""
    sample = read_sample(filled.client, Group((window(0),)), limit=300)
    assert sample.kept_ratio == 0.25
    assert sample.size == pytest.approx(300, abs=60)
    assert sample.requests == pytest.approx(1200, rel=0.2)
    assert len(sample.parts["decode"].wall_ns) == sample.size
    assert last_id(1) == "f" * 32
    assert last_id(0.25) == "3" + "f" * 31


def test_ids_that_do_not_begin_at_random_are_taken_by_hash(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """If all trace ids begin alike, a range of them would be all or nothing; a quarter is read all the same."""
    monkeypatch.setattr("tailspan_queries.compare_read._SURE", 50)
    sample = read_sample(filled.client, Group((window(COUNTED_HOUR),)), limit=100)
    assert sample.kept_ratio == 0.25
    assert sample.size == pytest.approx(100, abs=35)


def test_of_a_rare_attribute_more_requests_are_gone_through(filled: Filled) -> None:
    """Where a sample holds few requests with the attribute, four times as many are looked at."""
    group = Group((window(CANARY_HOUR),), Filters(), "user.canary", "1")
    sample = read_sample(filled.client, group, limit=100)
    assert sample.kept_ratio == pytest.approx(100 / 440 * 4)
    assert 28 <= sample.size <= 40
    assert sample.requests == pytest.approx(40, rel=0.2)


def test_several_windows_are_one_side(filled: Filled) -> None:
    """Requests and blocks of windows that follow one another are numbered through."""
    together = read_sample(filled.client, Group((window(0), window(1), window(EMPTY_HOUR))))
    assert (together.size, together.block_count) == (2400, 90)
    assert np.bincount(together.blocks // 30).tolist() == [1200, 1200]
    e2e_ns = np.concatenate([filled.traffic[name].e2e_ns for name in ("base", "tail")])
    assert sorted(together.parts[REQUEST].wall_ns) == sorted(e2e_ns.astype(float))


@pytest.mark.parametrize(
    ("key", "values"),
    [("service.version", ("1.2", "1.3")), ("user.shard", ("0", "1"))],
)
def test_versions_that_ran_side_by_side_are_compared(filled: Filled, key: str, values: tuple[str, str]) -> None:
    """An attribute of the resource or of the request's span divides one window."""
    sides = [Group((window(VERSIONS_HOUR),), Filters(), key, value) for value in values]
    report = compare_groups(filled.client, sides[0], sides[1])
    assert (report.before.size, report.after.size) == (500, 500)
    line = report.line("decode", "p50")
    assert isinstance(line, Line)
    assert line.verdict == "worse"
    assert line.change_ratio == pytest.approx(0.3, abs=0.01)


def test_filters_choose_requests(filled: Filled) -> None:
    """A filter that no request passes leaves the side empty; one that all pass changes nothing."""
    assert read_sample(filled.client, Group((window(0),), Filters(service="chat"))).size == 1200
    assert read_sample(filled.client, Group((window(0),), Filters(instance="worker-9"))).size == 0


def run(capsys: pytest.CaptureFixture[str], filled: Filled, *arguments: str) -> tuple[int, str, str]:
    """Run the command; return exit code, output and notes."""
    code = main(["compare", *arguments, "--url", filled.url])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_table_says_that_the_median_improved_and_the_tail_got_worse(
    filled: Filled, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table for people is the reviewed one, and fits into a hundred columns."""
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = run(capsys, filled, "--before", span(0), "--after", span(1))
    assert code == 0
    assert "THE MEDIAN IMPROVED AND THE TAIL GOT WORSE: end-to-end" in out
    path = SNAPSHOTS / "compare.txt"
    if os.environ.get("TAILSPAN_UPDATE_SNAPSHOTS"):
        path.write_text(out)
    assert out == path.read_text()
    assert max(map(len, out.splitlines())) <= 100


def test_json_and_csv_hold_every_line(filled: Filled, capsys: pytest.CaptureFixture[str]) -> None:
    """Both machine forms have all statistics of all parts, and no number that JSON cannot say."""
    sides = ("--before", span(0), "--after", span(3))
    _, out, _ = run(capsys, filled, *sides, "--format", "json")
    document = json.loads(out)
    assert set(document) == {"before", "after", "adjusted", "strata", "lines", "findings", "cautions"}
    assert (document["before"]["requests"], document["after"]["requests"]) == (1200, 40)
    assert len(document["lines"]) == 5 * 8
    few = [line for line in document["lines"] if line["too_few"]]
    assert {line["statistic"] for line in few} >= {"p90", "p95", "p99"}
    _, out, _ = run(capsys, filled, *sides, "--format", "csv")
    rows = list(csv.reader(io.StringIO(out)))
    assert rows[0] == list(COLUMNS)
    assert len(rows) == 1 + 5 * 8


@pytest.mark.parametrize(("before", "after"), [(0, EMPTY_HOUR), (EMPTY_HOUR, 0), (EMPTY_HOUR, EMPTY_HOUR + 1)])
@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_an_empty_window_is_told_in_one_line(
    filled: Filled, capsys: pytest.CaptureFixture[str], before: int, after: int, form: str
) -> None:
    """A side without requests is a note that says where there are any, with exit code 0."""
    code, out, err = run(capsys, filled, "--before", span(before), "--after", span(after), "--format", form)
    assert code == 0
    assert len(err.splitlines()) == (before == EMPTY_HOUR) + (after >= EMPTY_HOUR)
    assert "no requests between" in err
    assert "nan" not in out.lower()


def test_one_request_on_a_side_prints(filled: Filled, capsys: pytest.CaptureFixture[str]) -> None:
    """A single request has its times and no verdict."""
    code, out, _ = run(capsys, filled, "--before", span(0), "--after", span(4), "--full")
    assert code == 0
    assert "only 1 request on a side" in out
    assert "worse" not in out.lower()
    assert "nan" not in out.lower()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "compare needs two windows, or two values of an attribute"),
        (("--before", "2h..1h"), "compare needs two windows"),
        (("--before", "2h", "--after", "1h..now"), "--before '2h' is not of the form FROM..TO"),
        (("--before", "1h..2h", "--after", "1h..now"), "--before '1h..2h' ends before it begins"),
        (("--before", "3h..1h", "--after", "2h..now"), "--before and --after overlap"),
        (("--by-attribute", "service.version"), "--by-attribute needs a key and two different values"),
        (("--by-attribute", "v=1", "--versus", "1"), "--by-attribute needs a key and two different values"),
        (("--by-attribute", "v=1", "--versus", "2", "--before", "2h..1h"), "are two questions"),
    ],
)
def test_a_wrong_question_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    """Options that do not make a question are told before ClickHouse is asked, with what to write instead."""
    assert main(["compare", *arguments]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert len(err.splitlines()) == 1
