"""`tailspan compare` on spans in ClickHouse: what it reads, and what it prints."""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tailspan import attributes
from tailspan.cli import main
from tailspan_queries.client import Client, connect
from tailspan_queries.compare import compare, compare_groups
from tailspan_queries.compare_read import choose, read_sample, read_samples
from tailspan_queries.compare_records import REQUEST, Group, Line
from tailspan_queries.compare_view import COLUMNS
from tailspan_queries.filters import Filters
from tailspan_queries.sampling import PARTS, STORED
from tailspan_queries.times import Window, iso
from tests.queries import compare_traffic as made
from tests.queries.compare_traffic import HOUR_NS, Truth
from tests.queries.printed import same_as_snapshot
from tests.queries.sample_parts import part_of
from tests.queries.traffic import BEGIN_NS
from tests.support.collector import RunningCollector, wait_until

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
    traces: dict[str, list[bytes]]

    def in_parts(self, name: str, parts: int) -> np.ndarray:
        """Return which of some requests are in the first so many parts of all traces."""
        return np.array([part_of(trace_id) < parts for trace_id in self.traces[name]])


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
    for number, (version, factor) in enumerate((("1.2", 1.0), ("1.3", 1.3))):
        begin_ns = BEGIN_NS + VERSIONS_HOUR * HOUR_NS
        items = made.make(Truth(count=500, factors={"decode": factor}), begin_ns, 50)
        found[version] = items
        spans[version] = list(made.spans(items, 60 + number, {"user.tier": "gold", "user.shard": number}))
        messages.append(made.message(spans[version], {**SERVICE, "service.version": version}))
    # Ids that begin alike, as those that begin with a time do.
    for name, hour, size, keys, prefix in (
        ("counted", COUNTED_HOUR, 400, {}, bytes(6)),
        ("stable", CANARY_HOUR, 400, {"user.canary": 0}, b""),
        ("canary", CANARY_HOUR, 40, {"user.canary": 1}, b""),
    ):
        found[name] = made.make(Truth(count=size), BEGIN_NS + hour * HOUR_NS, size)
        spans[name] = list(made.spans(found[name], size + hour, keys, prefix))
        messages.append(made.message(spans[name], SERVICE))
    count = sum(map(len, spans.values()))
    traces = {name: [span.trace_id for span in group if not span.parent_span_id] for name, group in spans.items()}
    with RunningCollector(tmp_path_factory.mktemp("compare") / "data", "--batch-seconds", "0.2") as collector:
        collector.export(*messages)
        assert collector.wait_rows(count) == count
        requests = sum(len(items.start_ns) for items in found.values())
        rolled_up = "select sum(span_count) from tailspan.stage_hours where stage = 'request'"
        assert wait_until(lambda: collector.query(rolled_up)[0][0], lambda count: count >= requests) == requests
        in_sample = "select uniqExact(trace_id) from tailspan.spans_sample"
        sampled = sum(part_of(trace_id) < STORED for ids in traces.values() for trace_id in ids)
        assert wait_until(lambda: collector.query(in_sample)[0][0], lambda count: count >= sampled) == sampled
        client = connect(collector.url)
        yield Filled(client, collector.url, found, traces)
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
    """Above the limit whole requests are read, in the same parts on both sides, and stand for all."""
    sides = Group((window(0),)), Group((window(1),))
    for sample, name in zip(read_samples(filled.client, *sides, limit=300), ("base", "tail"), strict=True):
        assert sample.kept_ratio == 0.25
        chosen = filled.in_parts(name, PARTS // 4)
        assert sorted(sample.parts[REQUEST].wall_ns) == sorted(filled.traffic[name].e2e_ns[chosen].astype(float))
        assert len(sample.parts["decode"].wall_ns) == sample.size
        assert sample.requests == 4 * chosen.sum()
        assert min(sample.size, 600 - sample.size) > 240
    assert [sample.kept_ratio for sample in read_samples(filled.client, *sides, limit=None)] == [1, 1]


def test_the_stored_sample_is_the_same(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where many requests are stored, the sample's own table is read, with the same answer as `spans`."""
    sides = Group((window(0),)), Group((window(1),))
    slow = [sorted(sample.parts["queue"].wall_ns) for sample in read_samples(filled.client, *sides, limit=60)]
    monkeypatch.setattr("tailspan_queries.sampling.SCAN_LIMIT", 0)
    monkeypatch.setattr("tailspan_queries.sampling.FEW", 0)
    asked: list[dict[str, object]] = []
    run = Client.run
    monkeypatch.setattr(Client, "run", lambda *words: asked.append(words[2]) or run(*words))
    stored = read_samples(filled.client, *sides, limit=60)
    assert [words["spans"] for words in asked if "block_ns" in words] == ["spans_sample"] * 2
    assert [sorted(sample.parts["queue"].wall_ns) for sample in stored] == slow
    assert [sample.kept_ratio for sample in stored] == [PARTS * 60 // 1200 / PARTS] * 2


@pytest.mark.parametrize(
    ("hours", "limit", "ratios"),
    [
        ((0, 3), 300, (0.25, 1)),  # of 1,200 and 40: all of the smaller one
        ((0, VERSIONS_HOUR), 300, (0.25, 0.25)),  # of 1,200 and 1,000: the same of both
        ((VERSIONS_HOUR, 0), 300, (0.25, 0.25)),
        ((0, COUNTED_HOUR), 100, (341 / PARTS, 0.25)),  # of 1,200 and 400: each its own
    ],
)
def test_a_small_side_is_read_further(
    filled: Filled, hours: tuple[int, int], limit: int, ratios: tuple[float, float]
) -> None:
    """Both sides are read in the parts of the larger one, unless the smaller one is not half as large."""
    groups = [Group((window(hour),)) for hour in hours]
    assert [traces.ratio for traces in choose(filled.client, *groups, limit)] == list(ratios)


def test_ids_that_begin_alike_fall_into_all_parts(filled: Filled) -> None:
    """Of trace ids that all begin with the same bytes a sample is read like of any others."""
    _, counted = read_samples(filled.client, Group((window(0),)), Group((window(COUNTED_HOUR),)), limit=100)
    chosen = filled.in_parts("counted", PARTS // 4)
    assert sorted(counted.parts[REQUEST].wall_ns) == sorted(filled.traffic["counted"].e2e_ns[chosen].astype(float))
    assert counted.size == pytest.approx(100, abs=35)


def test_of_a_rare_attribute_more_requests_are_gone_through(filled: Filled) -> None:
    """Where a sample holds few requests with the attribute, four times as many are looked at; of the other, not."""
    rare, often = (Group((window(CANARY_HOUR),), Filters(), "user.canary", value) for value in ("1", "0"))
    found = read_samples(filled.client, rare, often, limit=100)
    parts = PARTS * 100 // 440
    assert [sample.kept_ratio for sample in found] == [4 * parts / PARTS, parts / PARTS]
    assert [sample.size for sample in found] == [
        filled.in_parts("canary", 4 * parts).sum(),
        filled.in_parts("stable", parts).sum(),
    ]


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
    same_as_snapshot("compare.txt", out)
    assert max(map(len, out.splitlines())) <= 100


def test_json_and_csv_hold_every_line(filled: Filled, capsys: pytest.CaptureFixture[str]) -> None:
    """Both machine forms have all statistics of all parts, and no number that JSON cannot say."""
    sides = ("--before", span(0), "--after", span(3))
    _, out, _ = run(capsys, filled, *sides, "--format", "json")
    document = json.loads(out)
    assert set(document) == {"before", "after", "adjusted", "strata", "lines", "mix", "findings", "cautions"}
    assert [effect["statistic"] for effect in document["mix"]] == ["mean", "p50", "p90", "p95", "p99"]
    assert (document["before"]["requests"], document["after"]["requests"]) == (1200, 40)
    assert len(document["lines"]) == 5 * 8
    few = [line for line in document["lines"] if line["too_few"]]
    assert {line["statistic"] for line in few} >= {"p90", "p95", "p99"}
    _, out, _ = run(capsys, filled, *sides, "--format", "csv")
    rows = list(csv.reader(io.StringIO(out)))
    assert rows[0] == list(COLUMNS)
    assert len(rows) == 1 + 5 * 8


def test_a_sample_is_told_and_everything_read_where_it_is_asked_for(
    filled: Filled, capsys: pytest.CaptureFixture[str]
) -> None:
    """The part that was read is a caution and a number; with --exact there is neither, however few are asked for."""
    sides = ("--before", span(0), "--after", span(1), "--requests", "300", "--format", "json")
    sampled, exact = (json.loads(run(capsys, filled, *sides, *more)[1]) for more in ((), ("--exact",)))
    before, after = (sampled[side]["read_requests"] for side in ("before", "after"))
    told = f"read {before} of about {4 * before:,} and {after} of about {4 * after:,} requests: 25 % of the traces"
    assert f"{told} (--exact reads all)" in sampled["cautions"]
    assert (sampled["before"]["read_ratio"], sampled["before"]["requests"]) == (0.25, 4 * before)
    assert (exact["before"]["read_ratio"], exact["before"]["read_requests"]) == (1, 1200)
    assert not [caution for caution in exact["cautions"] if "of the traces" in caution]


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
