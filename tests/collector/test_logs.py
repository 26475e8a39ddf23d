"""Log lines: one record a line, in the format asked for, without secrets, payloads or floods."""

from __future__ import annotations

import io
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailspan_collector import logs
from tests.support.collector import wait_until

Configure = Callable[..., io.StringIO]
LOG = logging.getLogger("tailspan_collector.tests")
PASSWORD = "correct horse battery"


@pytest.fixture
def configure() -> Iterator[Configure]:
    """Configure the logs to write into a buffer; what was before is there again after the test."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    levels = {name: logging.getLogger(name).level for name in logs._QUIET}
    made: list[logging.Handler] = []

    def start(log_format: str = "text", log_level: str = "warning", **options: Any) -> io.StringIO:
        stream = io.StringIO()
        made.append(logs.configure(log_format, log_level, stream=stream, **options))
        return stream

    yield start
    for handler in made:
        handler.close()
    root.handlers[:] = before
    root.setLevel(level)
    for name, quiet in levels.items():
        logging.getLogger(name).setLevel(quiet)


def test_text_is_as_people_know_it(configure: Configure) -> None:
    """`tailspan: LEVEL: message`, further fields behind it; what is below the level is not written."""
    stream = configure()
    LOG.warning("batch of %d requests", 3, extra={"signal": "traces", "seconds": 0.25})
    LOG.info("quiet")
    assert stream.getvalue() == "tailspan: WARNING: batch of 3 requests signal=traces seconds=0.25\n"


def test_json_lines_have_stated_keys(configure: Configure) -> None:
    """Every line is an object with time, level, logger, message and fields; numbers stay numbers."""
    stream = configure("json", "info")
    LOG.info("stored %s", "batch", extra={"requests": 12, "signal": "logs"})
    LOG.error("broken")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first["time"].endswith("+00:00")
    assert abs(time.time() - time.mktime(time.strptime(first["time"][:19], "%Y-%m-%dT%H:%M:%S")) + time.timezone) < 60
    assert {key: first[key] for key in ("level", "logger", "message", "fields")} == {
        "level": "info", "logger": "tailspan_collector.tests", "message": "stored batch",
        "fields": {"requests": 12, "signal": "logs"},
    }  # fmt: skip
    assert (second["level"], second["fields"]) == ("error", {})


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize(
    ("secret", "text"),
    [
        ("hunter2", "cannot reach http://writer:hunter2@clickhouse:8123/?a=1"),
        ("hunter2", "cannot reach https://hunter2@clickhouse:8443"),
        ("eyJhbGciOi.J9", "header authorization: Bearer eyJhbGciOi.J9 refused"),
        ("aHVudGVyMg==", "Authorization: Basic aHVudGVyMg=="),
        ("s3cr3t", "login password=s3cr3t failed"),
        ("with blank", "clickhouse_password='with blank' failed"),
        ("s3cr3t", 'body {"token": "s3cr3t", "x": 1}'),
        ("AKIA99", "x-api-key: AKIA99"),
        (PASSWORD, f"the server said {PASSWORD} is wrong"),
    ],
)
def test_no_secret_is_written(configure: Configure, log_format: str, secret: str, text: str) -> None:
    """Credentials are masked in the message, in an argument, in a field and in a traceback."""
    stream = configure(log_format, secrets=[PASSWORD, "", "no"])
    LOG.warning(text)
    LOG.warning("%s", text)
    LOG.warning("with field", extra={"endpoint": text})
    try:
        raise ValueError(text)
    except ValueError:
        LOG.exception("failed")
    assert secret not in stream.getvalue()
    assert stream.getvalue().count("***") >= 4
    assert "ValueError" in stream.getvalue()


@given(
    secret=st.text("abcXYZ019-_%+/=", min_size=4, max_size=40), before=st.text(max_size=30), after=st.text(max_size=30)
)
def test_a_known_secret_never_gets_through(secret: str, before: str, after: str) -> None:
    """Whatever stands around it, and whatever it is made of."""
    masked = logs.Masker([secret])(f"{before}{secret}{after}")
    assert secret not in masked.replace("***", "\0")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_payloads_are_not_written(configure: Configure, log_format: str) -> None:
    """Bytes are shown as their number, and literals that ClickHouse quotes from data are left out; the code stays."""
    stream = configure(log_format)
    LOG.warning("refused %s", b"\x0a\x05prompt", extra={"payload": b"prompt text"})
    LOG.warning("insert failed: %s", "Code: 27. DB::Exception: Cannot parse input: expected '(' before: 'the prompt'")
    written = stream.getvalue()
    assert "<8 bytes>" in written
    assert "<11 bytes>" in written
    assert "prompt" not in written
    assert "Code: 27" in written


def test_a_sender_cannot_forge_lines(configure: Configure) -> None:
    """Line breaks and control characters of a message are escaped, so that one record is one line."""
    stream = configure()
    LOG.warning("peer %s", "1.2.3.4\ntailspan: ERROR: all is lost\r\x1b[2J\u2028x")
    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b" not in stream.getvalue()
    stream = configure("json")
    LOG.warning("peer %s", '"}\n{"level":"error')
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["level"] == "warning"


def test_a_huge_message_is_cut(configure: Configure) -> None:
    """A line never grows with what somebody sent; it says how long the message was."""
    stream = configure()
    LOG.warning("reason: %s", "x" * 1_000_000)
    assert len(stream.getvalue()) < 2200
    assert "(1000008 characters)" in stream.getvalue()


def test_a_repeated_message_is_one_line_and_a_count(configure: Configure) -> None:
    """A thousand failures, each with another value, are the first line and one with the number of the others."""
    stream = configure("json", window_s=2)
    for number in range(1000):
        LOG.warning("next try in %d s", number)
    assert len(stream.getvalue().splitlines()) == 1
    assert wait_until(lambda: len(stream.getvalue().splitlines()), lambda lines: lines == 2, 10) == 2
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first["message"] == "next try in 0 s"
    assert second["message"] == "next try in 999 s"
    assert second["fields"] == {"repeated": 999, "within_seconds": 2}
    LOG.warning("next try in %d s", 1)
    assert len(stream.getvalue().splitlines()) == 3


def test_different_messages_do_not_hold_each_other_back(configure: Configure) -> None:
    """Another text, level or logger is another message, and a single one is not counted again later."""
    stream = configure(window_s=0.1)
    LOG.warning("one")
    LOG.error("one")
    LOG.warning("two")
    logging.getLogger("tailspan_collector.other").warning("one")
    time.sleep(0.3)
    assert len(stream.getvalue().splitlines()) == 4


def test_counts_are_written_at_the_end(configure: Configure) -> None:
    """Closing writes what is still held back, so that no count is lost at shutdown; no timer is left."""
    stream = configure(window_s=600)
    for _ in range(5):
        LOG.warning("again")
    before = threading.active_count()
    (handler,) = [item for item in logging.getLogger().handlers if isinstance(item, logs.LimitedHandler)]
    handler.close()
    assert "again repeated=4" in stream.getvalue()
    assert wait_until(threading.active_count, lambda count: count < before, 5) < before


def test_endless_different_messages_need_bounded_memory(configure: Configure) -> None:
    """A library that puts values into its templates gets all its lines, and not a timer for each."""
    stream = configure(window_s=600)
    before = threading.active_count()
    for number in range(2000):
        LOG.warning(f"value {number}")
    assert len(stream.getvalue().splitlines()) == 2000
    assert threading.active_count() - before <= 256


def test_a_message_that_cannot_be_formatted_does_not_raise(
    configure: Configure, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong template in a log call is still a line, and its arguments are not printed unmasked by logging."""
    stream = configure()
    (handler,) = [item for item in logging.getLogger().handlers if isinstance(item, logs.LimitedHandler)]
    handler.handle(LOG.makeRecord(LOG.name, logging.WARNING, __file__, 1, "%d requests", ("hunter2",), None))
    assert "%d requests (the arguments do not fit)" in stream.getvalue()
    assert "hunter2" not in stream.getvalue() + capsys.readouterr().err


def test_configuring_again_replaces_the_handler(configure: Configure) -> None:
    """Each record is written once, in the format of the latest call."""
    first = configure("text")
    second = configure("json")
    LOG.warning("once")
    assert first.getvalue() == ""
    assert json.loads(second.getvalue())["message"] == "once"
