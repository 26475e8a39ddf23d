"""Log lines of the collector: text or JSON, without payloads and secrets, and no message a thousand times over.

Out, text: `tailspan: WARNING: the message`, further fields as `name=value`.
Out, JSON: one object a line: `time` (RFC 3339, UTC), `level`, `logger`, `message`, `fields`, and `exception` if any.
Bytes are shown as their number. Passwords in URLs, bearer tokens, `password=` and given secrets are masked, and so are
literals that ClickHouse quotes from data. Line breaks are escaped: one record is one line, except a traceback in text.
A message that repeats is one line and then, once a minute, a count. Fields come by `extra={...}`.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

_MASK = "***"
_LONGEST = 2000
_MOST_MESSAGES = 256  # of which repetitions are counted, each with a timer
_QUIET = {"urllib3": logging.CRITICAL, "clickhouse_connect": logging.CRITICAL, "uvicorn": logging.WARNING}
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_SECRETS = (
    (re.compile(r"(?<=://)[^/@\s]*@"), f"{_MASK}@"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]+"), rf"\1 {_MASK}"),
    (
        re.compile(
            r"(?i)(?<![a-z0-9])(password|passwd|token|secret|api[-_]?key)(['\"]?\s*[=:]\s*)"
            r"(\"[^\"]*\"|'[^']*'|[^\s'\"&,;]+)"
        ),
        rf"\1\2{_MASK}",
    ),
)
_LITERAL = re.compile(r"'(?:[^'\\]|\\.)*'")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")


class Masker:
    """Takes out of a text what must not be logged."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """`secrets`: texts that are masked wherever they occur; those under four characters would mask words."""
        known = sorted({secret for secret in secrets if len(secret) >= 4}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def __call__(self, text: str) -> str:
        """Return the text without secrets."""
        if self._known is not None:
            text = self._known.sub(_MASK, text)
        for pattern, replacement in _SECRETS:
            text = pattern.sub(replacement, text)
        if "DB::Exception" in text:
            text = _LITERAL.sub("'…'", text)
        return text


class _Formatter(logging.Formatter):
    """What both formats share."""

    def __init__(self, mask: Masker) -> None:
        super().__init__()
        self._mask = mask

    def _message(self, record: logging.LogRecord) -> str:
        arguments = record.args
        if isinstance(arguments, tuple):
            arguments = tuple(_shown(value) for value in arguments)
        try:
            text = str(record.msg) % arguments if arguments else str(record.msg)
        except (TypeError, ValueError, KeyError):  # logging's own report would print the arguments as they are
            text = f"{record.msg} (the arguments do not fit)"
        text = self._mask(text)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        return {name: self._field(value) for name, value in record.__dict__.items() if name not in _STANDARD}

    def _field(self, value: Any) -> Any:
        value = _shown(value)
        return value if isinstance(value, int | float | None) else self._mask(str(value))[:_LONGEST]

    def _traceback(self, record: logging.LogRecord) -> str:
        return self._mask(self.formatException(record.exc_info)) if record.exc_info else ""


class TextFormatter(_Formatter):
    """`tailspan: WARNING: the message name=value`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, and the traceback if there is one."""
        fields = "".join(f" {name}={value}" for name, value in self._fields(record).items())
        line = _one_line(f"tailspan: {record.levelname}: {self._message(record)}{fields}")
        traceback = self._traceback(record)
        return f"{line}\n{traceback}" if traceback else line


class JsonFormatter(_Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object."""
        content: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._message(record),
            "fields": self._fields(record),
        }
        if traceback := self._traceback(record):
            content["exception"] = traceback
        return json.dumps(content, ensure_ascii=False, default=str)


def _shown(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    return value


def _one_line(text: str) -> str:
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


@dataclass(slots=True)
class _Repeated:
    """The latest record of a message within its window, and how many were held back."""

    timer: threading.Timer
    latest: logging.LogRecord | None = None
    count: int = 0


class LimitedHandler(logging.StreamHandler[TextIO]):
    """Writes the first of equal messages at once and says after `window_s` how many more there were."""

    def __init__(self, stream: TextIO, window_s: float) -> None:
        super().__init__(stream)
        self._window_s = window_s
        self._seen: dict[tuple[str, int, str], _Repeated] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record or count it.

        Messages are equal when their template is, so that a changing value does not make a flood of them. What is
        below INFO is for a developer and is all written.
        """
        if record.levelno < logging.INFO or len(self._seen) >= _MOST_MESSAGES:
            super().emit(record)
            return
        key = (record.name, record.levelno, str(record.msg))
        if (repeated := self._seen.get(key)) is not None:
            repeated.count, repeated.latest = repeated.count + 1, record
            return
        timer = threading.Timer(self._window_s, self._end, (key,))
        timer.daemon = True
        self._seen[key] = _Repeated(timer)
        timer.start()
        super().emit(record)

    def _end(self, key: tuple[str, int, str]) -> None:
        self.acquire()
        try:
            repeated = self._seen.pop(key, None)
            if repeated is not None and repeated.latest is not None:
                repeated.latest.repeated = repeated.count
                repeated.latest.within_seconds = round(self._window_s, 1)
                super().emit(repeated.latest)
        finally:
            self.release()

    def close(self) -> None:
        """Write the counts that are still held back."""
        for key in list(self._seen):
            self._seen[key].timer.cancel()
            self._end(key)
        super().close()


def configure(
    log_format: str = "text",
    log_level: str = "warning",
    secrets: Iterable[str] = (),
    stream: TextIO | None = None,
    window_s: float = 60.0,
) -> logging.Handler:
    """Send all log records of the process to `stream` (stderr); return the handler, which an earlier call's replaces.

    In: `log_format` text or json; `log_level` debug, info, warning or error; `secrets`, such as the password of
    ClickHouse, are masked wherever they would appear.
    """
    mask = Masker(secrets)
    handler = LimitedHandler(sys.stderr if stream is None else stream, window_s)
    handler.setFormatter(JsonFormatter(mask) if log_format == "json" else TextFormatter(mask))
    root = logging.getLogger()
    for old in [item for item in root.handlers if isinstance(item, LimitedHandler)]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(log_level.upper())
    for name, level in _QUIET.items():
        logging.getLogger(name).setLevel(level)
    return handler
