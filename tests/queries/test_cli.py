"""The reading commands as a user calls them: formats, exit codes and error lines."""

import csv
import http.server
import io
import json
import re
import socket
import threading
import time
from pathlib import Path

import pytest

from tailspan.cli import main
from tailspan_queries import catalog
from tests.queries import traffic
from tests.queries.printed import rounded, same_as_snapshot

PAIR = ["--since", "2026-11-30T12:00Z", "--until", "2026-11-30T12:01Z"]
BURSTS = ["--since", "2026-11-29T12:00Z", "--until", "2026-11-29T13:00Z"]
SAMPLED = ["--since", "2026-12-01T12:00Z", "--until", "2026-12-01T13:00Z"]
ENGINES = ["--since", "2026-12-02T12:00Z", "--until", "2026-12-02T12:02Z"]
LAYERS = ["--since", "2026-12-03T12:00Z", "--until", "2026-12-03T12:03Z"]
SLOWED = ["--since", "2026-12-03T12:10Z", "--until", "2026-12-03T12:13Z"]
BASELINE = ["--baseline", "2026-12-03T12:00Z..2026-12-03T12:03Z", "--model", "llama-6"]
EMPTY = ["--since", "2026-11-29T10:00Z", "--until", "2026-11-29T11:00Z"]
ENGINE_COMMANDS = ("interference", "preemption", "engine", "gpu", "layers")
TRACE_ID = "ab" * 16
Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("commands_ask_here")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("stages.txt", ["stages", *PAIR]),
        ("stages_all.txt", ["stages", *PAIR, "--time", "all"]),
        ("stages_bursts.txt", ["stages", *BURSTS, "--model", "small"]),
        ("stages_rollup.txt", ["stages", *BURSTS, "--rollup"]),
        ("stages.json", ["stages", *PAIR, "--format", "json"]),
        ("stages.csv", ["stages", *PAIR, "--format", "csv"]),
        ("stages_sampled.txt", ["stages", *SAMPLED]),
        ("stages_events.json", ["stages", *SAMPLED, "--instance", "worker-1", "--format", "json"]),
        ("query_worker_events.txt", ["query", "worker_events", *SAMPLED, "--instance", "worker-1"]),
        ("trace.txt", ["trace", TRACE_ID]),
        ("trace.json", ["trace", TRACE_ID, "--format", "json"]),
        ("trace.csv", ["trace", TRACE_ID, "--format", "csv"]),
        ("trace_step.txt", ["trace", f"{5:032x}"]),
        ("slowest.txt", ["slowest", *BURSTS, "-n", "4"]),
        ("slowest.json", ["slowest", *PAIR, "--format", "json"]),
        ("slowest.csv", ["slowest", *BURSTS, "-n", "2", "--format", "csv"]),
        ("query_list.txt", ["query"]),
        ("query_ttft.txt", ["query", "ttft", *BURSTS]),
        ("query_itl.txt", ["query", "itl", *PAIR]),
        ("query_steps.json", ["query", "steps", *PAIR, "--format", "json"]),
        ("query_services.csv", ["query", "services", *PAIR, "--format", "csv"]),
        ("interference.txt", ["interference", *ENGINES]),
        ("interference_requests.txt", ["interference", *ENGINES, "--by", "request", "-n", "3"]),
        ("interference_unknown.txt", ["interference", *PAIR, "--by", "engine"]),
        ("interference.json", ["interference", *ENGINES, "--by", "all", "--format", "json"]),
        ("interference.csv", ["interference", *ENGINES, "--by", "minute", "--format", "csv"]),
        ("preemption.txt", ["preemption", *ENGINES]),
        ("preemption_requests.txt", ["preemption", *ENGINES, "--by", "request", "-n", "3"]),
        ("preemption_none.txt", ["preemption", *PAIR]),
        ("preemption.json", ["preemption", *ENGINES, "--by", "all", "--format", "json"]),
        ("preemption.csv", ["preemption", *ENGINES, "--by", "minute", "--format", "csv"]),
        ("engine.txt", ["engine", *ENGINES]),
        ("engine_minutes.txt", ["engine", *ENGINES, "--by", "minute", "--instance", "engine-a.host", "--gaps", "0"]),
        ("engine.json", ["engine", *ENGINES, "--instance", "engine-b.host", "-n", "2", "--format", "json"]),
        ("engine.csv", ["engine", *ENGINES, "--gap-ms", "2.5", "--format", "csv"]),
        ("engine_launches.txt", ["engine", *LAYERS, "--gaps", "0", "--model", "llama-eager"]),
        ("gpu.txt", ["gpu", *LAYERS]),
        ("gpu_cpu.txt", ["gpu", *LAYERS, "--model", "smol-6"]),
        ("gpu_untimed.txt", ["gpu", *PAIR]),
        ("gpu.json", ["gpu", *LAYERS, "--format", "json"]),
        ("gpu.csv", ["gpu", *LAYERS, "--format", "csv"]),
        ("layers.txt", ["layers", *LAYERS]),
        ("layers_decode.txt", ["layers", *LAYERS, "--by", "layer", "--phase", "decode", "--model", "smol-6"]),
        ("layers_parts.txt", ["layers", *LAYERS, "--by", "part", "-n", "5", "--model", "llama-6"]),
        ("layers_batch.txt", ["layers", *LAYERS, "--batch", "--phase", "decode", "--model", "llama-6"]),
        ("layers.json", ["layers", *LAYERS, "--format", "json", "--model", "smol-6"]),
        ("layers.csv", ["layers", *LAYERS, "--by", "layer", "--format", "csv"]),
        ("layers_drift.txt", ["layers", *SLOWED, *BASELINE, "--by", "part", "-n", "4"]),
        ("layers_drift.json", ["layers", *SLOWED, *BASELINE, "--by", "layer", "--format", "json"]),
        ("layers_drift.csv", ["layers", *SLOWED, *BASELINE, "--format", "csv"]),
        ("layers_e2e.txt", ["layers", *LAYERS, "--e2e", "--model", "llama-6"]),
        ("layers_e2e_all.txt", ["layers", *LAYERS, "--e2e", "--by", "layer"]),
        ("layers_e2e.csv", ["layers", *LAYERS, "--e2e", "--format", "csv"]),
        ("layers_speedup.txt", ["layers", *LAYERS, "--speedup", "attention=1.3", "--model", "llama-6"]),
        ("layers_speedup.json", ["layers", *LAYERS, "--speedup", "2/mlp=2", "--speedup", "3=1.5", "--format", "json"]),
    ],
)
def test_output_is_as_documented(capsys: Capture, name: str, arguments: list[str]) -> None:
    """Each command prints what its snapshot holds, nothing to standard error, no colour, at most 100 columns."""
    assert main(arguments) == 0
    found = capsys.readouterr()
    assert found.err == ""
    assert "\x1b" not in found.out
    if name.endswith(".txt"):
        assert max(map(len, found.out.splitlines())) <= 100
    same_as_snapshot(name, rounded(found.out) if name.startswith("layers") else found.out)


@pytest.mark.parametrize(
    "arguments",
    [
        ["stages", *PAIR],
        ["trace", TRACE_ID],
        ["slowest", *PAIR],
        ["query", "steps", *PAIR],
        ["interference", *ENGINES, "--by", "request"],
        ["preemption", *ENGINES, "--by", "engine"],
        ["engine", *ENGINES],
        ["gpu", *LAYERS],
        ["layers", *LAYERS, "--by", "part"],
        ["layers", *LAYERS, "--batch"],
        ["layers", *LAYERS, "--e2e"],
        ["layers", *SLOWED, *BASELINE],
    ],
)
def test_json_is_json_and_csv_is_csv(capsys: Capture, arguments: list[str]) -> None:
    """Every command's JSON and CSV can be read back, and agree in the number of rows."""
    assert main([*arguments, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert main([*arguments, "--format", "csv"]) == 0
    header, *lines = csv.reader(io.StringIO(capsys.readouterr().out))
    assert all(len(line) == len(header) for line in lines)
    key = {"stages": "stages", "trace": "spans", "slowest": "requests", "engine": "engines"}.get(arguments[0], "rows")
    assert len(document[key]) == len(lines) > 0


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "arguments",
    [
        ["stages", *PAIR, "--time", "all"],
        ["trace", TRACE_ID],
        ["slowest", *BURSTS],
        ["interference", *ENGINES, "--by", "engine"],
        ["interference", *ENGINES, "--by", "request"],
        ["preemption", *ENGINES, "--by", "instance"],
        ["preemption", *ENGINES, "--by", "request"],
        ["engine", *ENGINES],
        ["engine", *ENGINES, "--by", "minute"],
        ["gpu", *LAYERS],
        ["layers", *LAYERS, "--by", "part"],
        ["layers", *LAYERS, "--batch", "--by", "part"],
        ["layers", *LAYERS, "--e2e", "--by", "part"],
        ["layers", *SLOWED, *BASELINE, "--by", "part"],
    ],
)
def test_tables_fit_the_terminal(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, arguments: list[str], columns: int
) -> None:
    """In a narrow and in a wide terminal no line is longer than the terminal, and nothing is cut."""
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert columns - 25 <= max(map(len, out.splitlines())) <= columns
    assert "…" not in out


@pytest.mark.parametrize("coloured", [True, False])
def test_colour_only_where_it_is_wanted(capsys: Capture, monkeypatch: pytest.MonkeyPatch, coloured: bool) -> None:
    """A terminal gets colour, unless NO_COLOR is set; the text is the same."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    if not coloured:
        monkeypatch.setenv("NO_COLOR", "1")
    main(["trace", TRACE_ID])
    found = capsys.readouterr().out
    assert bool(re.search(r"\x1b\[[\d;]*3\d", found)) == coloured


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["stages", "--since", "xx"],
            "--since 'xx' is neither a duration nor a time. Use a duration such as 15m, 2h or 1d",
        ),
        (["slowest", "--until", "1 hour"], "--until '1 hour' is neither a duration nor a time. Use"),
        (["stages", "--since", "1m", "--until", "2h"], "--since 1m is not before --until 2h. Put the earlier"),
        (
            ["stages", "--format", "xml"],
            "Invalid value for '--format': 'xml' is not one of 'table', 'json', 'csv'. See",
        ),
        (["stages", "--sinc", "1h"], "No such option"),
        (["slowest", "-n", "0"], "Invalid value for '-n'"),
        (["trace"], "Missing argument 'ID'. See: tailspan trace --help"),
        (["trace", "fe" * 16], f"there is no trace or request '{'fe' * 16}'. List some with `tailspan slowest`"),
        (["trace", "abab"], "'abab' is too short for a trace id. Give at least 6"),
        (["trace", "ababab"], "'ababab' fits several traces: ababab"),
        (["query", "itll"], "there is no query 'itll'. Did you mean itl?"),
        (["query", "./none.sql"], "cannot read ./none.sql: No such file or directory. Give a .sql file"),
        (["query", "trace"], "query trace needs the parameter trace_id (String). Add --param trace_id=VALUE"),
        (["query", "itl", "--param", "x=1"], "query itl has no parameter 'x'. It takes: since, until"),
        (["query", "itl", "--param", "x"], "--param 'x' is not of the form name=value. Write"),
        (["query", "steps", "--model", "m"], "query steps does not filter by model. Leave --model out"),
        (["layers", "--baseline", "1h"], "--baseline '1h' is not of the form FROM..TO. Write --baseline 2h..1h"),
        (["layers", "--baseline", "3h..30m"], "the baseline overlaps the window. End the earlier one where"),
        (["layers", "--batch", "--e2e"], "--batch and --e2e are two questions. Ask one after the other"),
        (["layers", "--baseline", "3h..2h", "--speedup", "mlp=2"], "--baseline and --speedup are two questions"),
        (["layers", "--e2e", "--phase", "decode"], "--e2e is about whole requests. Leave --phase out"),
        (["layers", "--speedup", "mlp"], "--speedup 'mlp' does not read. Write --speedup attention=1.3"),
        (["layers", *LAYERS, "--speedup", "mixer=2"], "no sampled step has the part 'mixer'. There are: attention,"),
        (["query", "slowest", "--param", "limit=many"], "ClickHouse rejected slowest: "),
        (
            ["stages", "--url", "http://127.0.0.1:1"],
            "ClickHouse is not reachable at http://127.0.0.1:1. Start the collector",
        ),
        (
            ["stages", "--url", "http://me:secret@127.0.0.1:1"],
            "ClickHouse is not reachable at http://127.0.0.1:1. Start",
        ),
        (["stages", "--url", "localhost:8123"], "'localhost:8123' is no ClickHouse address. Use http://HOST:PORT"),
        (["stages", "--url", "http://h:99999"], "'http://h:99999' is no ClickHouse address. Use"),
    ],
)
def test_bad_input_is_one_clear_line(capsys: Capture, arguments: list[str], message: str) -> None:
    """Each mistake gives exit code 2 and one line that says what is wrong and what to do; nothing else is printed."""
    assert main(arguments) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("\n") == 1
    assert found.err.startswith(f"tailspan: error: {message}")
    assert "secret" not in found.err


@pytest.mark.parametrize(
    ("arguments", "form"),
    [(["stages"], "table"), (["stages"], "json"), (["slowest"], "csv"), (["query", "ttft"], "table")],
)
def test_an_empty_window_says_when_there_is_data(capsys: Capture, arguments: list[str], form: str) -> None:
    """No requests in the window is no error: a line says from when to when there are any, and how to ask for them."""
    assert main([*arguments, *EMPTY, "--format", form, "--model", "small"]) == 0
    found = capsys.readouterr()
    assert found.err.startswith(
        "tailspan: no requests for --model small between 2026-11-29 10:00:00 and 2026-11-29 11:00:00 UTC; "
        "there are 2,764 from 2026-11-29 12:00:00 to"
    )
    since, until = re.findall(r"--(?:since|until) (\S+)", found.err)
    assert main(["stages", "--since", since, "--until", until, "--model", "small", "--format", "json"]) == 0
    if form == "json":
        out = capsys.readouterr().out
        assert json.loads(out)["requests"] == 2764


@pytest.mark.parametrize("name", ENGINE_COMMANDS)
def test_engine_commands_say_why_there_is_nothing(capsys: Capture, name: str) -> None:
    """Without data in the window nothing is printed but a note, and JSON and CSV have no rows."""
    assert main([name, *EMPTY]) == 0
    found = capsys.readouterr()
    assert found.out == ""
    assert "no requests between 2026-11-29 10:00:00 and 2026-11-29 11:00:00 UTC; there are" in found.err
    assert main([name, *EMPTY, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["engines" if name == "engine" else "rows"] == []
    assert main([name, *EMPTY, "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize("arguments", [[], ["--e2e"], ["--batch"], ["--speedup", "mlp=2"]])
def test_requests_without_layer_times_say_how_to_get_them(capsys: Capture, arguments: list[str]) -> None:
    """Where steps were not sampled, one line says so and nothing else is printed; JSON has no parts."""
    assert main(["layers", *PAIR, *arguments]) == 0
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("tailspan: no layer was timed in the steps of the 2 requests of the window: workers")
    assert found.err.count("\n") == 1
    assert main(["layers", *PAIR, *arguments, "--format", "json"]) == 0
    assert not [row for row in json.loads(capsys.readouterr().out)["rows"] if row.get("kind")]


def test_a_baseline_without_like_steps_says_so(capsys: Capture) -> None:
    """No step to compare with is one line."""
    baseline = "2026-12-03T11:00Z..2026-12-03T11:30Z"
    assert main(["layers", *LAYERS, "--baseline", baseline]) == 0
    found = capsys.readouterr()
    assert (found.out, found.err.count("\n")) == ("", 1)
    assert found.err.startswith("tailspan: no sampled steps in window and baseline that could be compared")


def test_a_filter_that_fits_nothing_is_told_apart(capsys: Capture) -> None:
    """A model that never sent a request is not a matter of the window."""
    assert main(["stages", *BURSTS, "--model", "smal"]) == 0
    assert "nor at any other time; `tailspan query services" in capsys.readouterr().err


def test_a_query_that_finds_nothing_among_requests_says_so(capsys: Capture) -> None:
    """Requests without what the query asks for are not reported as no requests."""
    assert main(["query", "itl", *BURSTS]) == 0
    assert capsys.readouterr().err == "tailspan: the query found nothing among the 4,000 requests of the window\n"


def test_a_file_of_ones_own_runs_with_parameters(capsys: Capture, tmp_path: Path) -> None:
    """Any .sql file runs, with the window, filters and parameters it uses."""
    file = tmp_path / "my query.sql"
    file.write_text(
        "-- how many of a model\nselect count() as n, {word:String} as word, unhex('00ff') as raw, [1, 2] as list\n"
        "from tailspan.requests where start >= {since:DateTime64(9, 'UTC')} and model = {model:String}\n"
    )
    arguments = [str(file), *BURSTS[:2], "--model", "small", "--param", "word=it's {x} \\ ok"]
    assert main(["query", *arguments, "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["n"], row["word"], row["list"]) == (2764, "it's {x} \\ ok", [1, 2])
    file.write_text("select 1 frm x")
    assert main(["query", str(file)]) == 2
    assert "ClickHouse rejected" in capsys.readouterr().err
    file.write_text("-- nothing\n")
    assert main(["query", str(file)]) == 2
    assert "holds no query" in capsys.readouterr().err
    file.write_text("select length(groupArray(number)) from numbers(10000000) settings max_memory_usage = 1000000")
    assert main(["query", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "my query.sql needs more memory than the ClickHouse at http" in line
    assert line.endswith("Ask for a shorter window or one --service or --model, and leave --exact out")


def test_a_database_without_tailspan_tables_says_how_to_make_them(capsys: Capture, tmp_path: Path) -> None:
    """A ClickHouse that was never migrated is told apart from a wrong query."""
    file = tmp_path / "other.sql"
    file.write_text("select * from tailspan.not_there")
    assert main(["query", str(file)]) == 2
    assert "has no tailspan tables. Create them with `tailspan migrate" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["stages", "trace", "slowest", "query", *ENGINE_COMMANDS])
def test_every_command_has_help(capsys: Capture, name: str) -> None:
    """--help exits with 0 and explains --format and --url."""
    assert main([name, "--help"]) == 0
    found = capsys.readouterr().out
    assert f"Usage: tailspan {name}" in found
    assert "--format" in found
    assert "--url" in found


def test_the_list_names_every_query(capsys: Capture) -> None:
    """`tailspan query` without a name lists all shipped queries with their purpose."""
    assert main(["query", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)["queries"]
    assert [entry["name"] for entry in listed] == list(catalog.names())
    assert all(entry["purpose"] for entry in listed)


def test_percentiles_printed_are_those_of_numpy(capsys: Capture, bursty: list[traffic.Request]) -> None:
    """What `tailspan stages --format csv` prints, exact and from the rollup, is NumPy's within the stated error."""
    import numpy as np

    for option, method, error in (("--exact", "linear", 1e-9), ("--rollup", "inverted_cdf", 0.008)):
        assert main(["stages", *BURSTS, option, "--format", "csv"]) == 0
        for row in csv.DictReader(io.StringIO(capsys.readouterr().out)):
            if row["stage"] in ("request", "unattributed"):
                continue
            values = [part.wall_ns for request in bursty for part in request.stages if part.name == row["stage"]]
            for name, quantile in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999)):
                expected = np.quantile(values, quantile, method=method)  # type: ignore[call-overload]
                assert float(row[f"wall_{name}_ns"]) == pytest.approx(expected, rel=error)


class Stranger(http.server.BaseHTTPRequestHandler):
    """A web server that is no ClickHouse."""

    def do_GET(self) -> None:
        """Answer like any page."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


def test_another_program_on_the_port_is_told_apart(capsys: Capture) -> None:
    """A port that answers, but not as ClickHouse does, is not reported as unreachable."""
    with http.server.HTTPServer(("127.0.0.1", 0), Stranger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert main(["stages", "--url", url]) == 2
        server.shutdown()
    assert capsys.readouterr().err.startswith(f"tailspan: error: what answers at {url} is no ClickHouse. Name its")


def test_a_port_that_hangs_is_given_up_soon(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that accepts and says nothing costs seconds, not minutes."""
    monkeypatch.setattr("tailspan_queries.client.CONNECT_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        begin = time.monotonic()
        assert main(["slowest", "--url", f"http://127.0.0.1:{server.getsockname()[1]}"]) == 2
    assert time.monotonic() - begin < 5
    assert "is not reachable" in capsys.readouterr().err
