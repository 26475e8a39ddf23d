"""Small parts of the worker side: ids, settings, the guard, the histogram, the command line."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailspan import cli, guard
from tailspan.agent import histogram
from tailspan.errors import UserError
from tailspan.ids import format_traceparent, new_span_id, new_trace_id, parse_traceparent
from tailspan.settings import Settings


def test_ids_are_random_and_not_zero() -> None:
    """A thousand ids of each kind differ and fit their width."""
    spans = {new_span_id() for _ in range(1000)}
    traces = {new_trace_id() for _ in range(1000)}
    assert len(spans) == len(traces) == 1000
    assert 0 < min(spans) <= max(spans) < 1 << 64
    assert 0 < min(traces) <= max(traces) < 1 << 128


@given(trace=st.integers(1, (1 << 128) - 1), span=st.integers(1, (1 << 64) - 1), flags=st.integers(0, 255))
def test_traceparent_round_trips(trace: int, span: int, flags: int) -> None:
    """What we send is what we would take over."""
    assert parse_traceparent(format_traceparent(trace, span, flags)) == (trace, span, flags)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00-abc-def-01",
        "00-" + "0" * 32 + "-" + "1" * 16 + "-01",
        "00-" + "1" * 32 + "-" + "0" * 16 + "-01",
        "ff-" + "1" * 32 + "-" + "1" * 16 + "-01",
        "00-" + "1" * 32 + "-" + "1" * 16 + "-01-extra",
        "00-" + "g" * 32 + "-" + "1" * 16 + "-01",
        "00-" + "1" * 31 + " -" + "1" * 16 + "-01",
        "00-" + "1" * 31 + "--" + "1" * 16 + "-01",
        "00-" + "1" * 32 + "_" + "1" * 16 + "-01",
        "00-" + "1" * 31 + "\u0661-" + "1" * 16 + "-01",
        "00-" + "1" * 32 + "-" + "1" * 16 + "-0",
        "01-" + "1" * 32 + "-" + "1" * 16 + "-01more",
    ],
)
def test_an_invalid_traceparent_is_ignored(header: str) -> None:
    """Malformed, zero, reserved-version or over-long headers give no parent."""
    assert parse_traceparent(header) is None


def test_a_future_version_of_traceparent_is_understood() -> None:
    """W3C: parse what version 00 knows from later versions."""
    assert parse_traceparent("01-" + "1" * 32 + "-" + "2" * 16 + "-01-more") is not None


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TAILSPAN_ENABLED", "maybe"),
        ("TAILSPAN_RING_RECORDS", "1000"),
        ("TAILSPAN_EXIT_TIMEOUT", "soon"),
        ("TAILSPAN_AGENT", "none"),
    ],
)
def test_a_wrong_variable_is_named_with_its_value_and_a_remedy(variable: str, value: str) -> None:
    """The message names the variable, what it holds, and what is allowed."""
    with pytest.raises(UserError) as caught:
        Settings.from_environment({variable: value})
    assert variable in str(caught.value)
    assert value in str(caught.value)
    assert caught.value.remedy.startswith("Use ")


def test_the_document_names_every_setting_of_the_worker() -> None:
    """The table of docs/RECORDER.md has the variables that the worker reads, and one of the agent about its spans."""
    document = (Path(__file__).parents[2] / "docs" / "RECORDER.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `(TAILSPAN_\w+)` \|", document, re.MULTILINE))
    read: list[str] = []

    class Environment(dict[str, str]):
        """One without variables that knows which were asked for."""

        def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
            read.append(name)
            return default

    Settings.from_environment(Environment())
    assert told == {*read, "TAILSPAN_LAYER_SPANS"}


def test_the_guard_swallows_counts_and_logs_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In production an error of a hook is logged the first time and counted every time."""
    monkeypatch.setenv("TAILSPAN_STRICT", "0")
    with caplog.at_level(logging.WARNING, logger="tailspan"):
        for _ in range(3):
            with guard.Guard("test.site"):
                raise ValueError("ours")
    assert guard.failures["test.site"] == 3
    assert len(caplog.records) == 1


def test_the_guard_lets_the_engines_own_control_flow_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt and SystemExit are never swallowed."""
    monkeypatch.setenv("TAILSPAN_STRICT", "0")
    with pytest.raises(KeyboardInterrupt), guard.Guard("test.interrupt"):
        raise KeyboardInterrupt


@given(gap=st.integers(2, 1 << 45))
def test_a_gap_lies_in_its_bucket(gap: int) -> None:
    """Bucket bounds hold the gap, and the bucket's middle is within 1.1 % of it."""
    low, high = histogram.bounds_ns(histogram.bucket(gap))
    assert low * (1 - 1e-9) < gap <= high * (1 + 1e-9)
    assert abs((low + high) / 2 - gap) / gap < 0.011


def test_a_histogram_counts_equal_gaps_together() -> None:
    """Sorted `bucket:count` pairs; nothing for a request with one token."""
    assert histogram.encode([1000, 1000, 1_000_000]) == "318:2 637:1"
    assert histogram.encode([]) == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense"], "unknown command 'nonsense'"),
        (["run"], "no command to run"),
        (["run", "--", "no-such-program-anywhere"], "command not found: no-such-program-anywhere"),
        (["agent", "/nonexistent/worker"], "cannot use the worker folder /nonexistent/worker"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line on stderr that says what is wrong and what to do."""
    assert cli.main(arguments) == 2
    error = capfd.readouterr().err
    assert error.startswith(f"tailspan: error: {says}")
    assert error.count("\n") == 1


def test_an_unknown_engine_is_refused(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """TAILSPAN_ENGINES with a wrong name stops `tailspan run` before anything starts."""
    monkeypatch.setenv("TAILSPAN_ENGINES", "tronsformers")
    assert cli.main(["run", "--", "true"]) == 2
    error = capfd.readouterr().err
    assert "unknown engine: tronsformers" in error
    assert "transformers" in error.split("tronsformers")[1]


def test_help_lists_every_command() -> None:
    """`tailspan --help` works in a process of its own and names all commands."""
    shown = subprocess.run([sys.executable, "-m", "tailspan", "--help"], capture_output=True, text=True, check=True)
    for name in cli.COMMANDS:
        assert f"  {name} " in shown.stdout
