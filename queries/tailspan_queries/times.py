"""Points in time and windows as a user writes them.

In: `15m`, `2h`, `1h30m`, `1d` (that long ago), `now`, or an ISO 8601 date or time; without an offset it is UTC.
Out: nanoseconds since the epoch and the text that a `DateTime64(9, 'UTC')` parameter takes.
Rollups are asked for whole minutes; for whole hours if both ends are given relative to now and lie `LONG_NS` or more
apart, since hours cost a hundredth. Such a window grows by less than an hour at each end; reports print what was used.
Errors: `UserError` names the option, its value and what is allowed.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tailspan.errors import UserError

NS_PER_SECOND = 1_000_000_000
NS_PER_MINUTE = 60 * NS_PER_SECOND
NS_PER_HOUR = 60 * NS_PER_MINUTE
LONG_NS = 6 * NS_PER_HOUR
"""A window given as `--since 24h` and as long as this is answered by whole hours where it comes from rollups."""
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
ALLOWED = "Use a duration such as 15m, 2h or 1d, a time such as 2026-11-29T14:00:00Z (UTC), or `now`"
LATEST_YEAR = 2262
"""DateTime64(9) ends in this year."""
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhdw])+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


@dataclass(frozen=True, slots=True)
class Window:
    """A half-open span of time: a request belongs to it if it began at or after `since_ns` and before `until_ns`.

    `relative`: both ends were given as so long ago, so that nobody means them to the minute.
    """

    since_ns: int
    until_ns: int
    relative: bool = field(default=False, compare=False)

    @property
    def parameters(self) -> dict[str, str]:
        """The query parameters `since` and `until`."""
        return {"since": sql_time(self.since_ns), "until": sql_time(self.until_ns)}

    @property
    def whole_minutes(self) -> Window:
        """The smallest window of whole minutes that holds this one."""
        return self._widened(NS_PER_MINUTE)

    @property
    def for_rollup(self) -> Window:
        """The window of whole minutes or hours that a report from rollups is about, as the module says."""
        long = self.relative and self.until_ns - self.since_ns >= LONG_NS
        return self._widened(NS_PER_HOUR if long else NS_PER_MINUTE)

    def _widened(self, unit_ns: int) -> Window:
        """Return the smallest window of whole units that holds this one."""
        return Window(self.since_ns // unit_ns * unit_ns, -(-self.until_ns // unit_ns) * unit_ns, self.relative)

    def as_json(self) -> dict[str, str]:
        """Both ends as ISO 8601 text."""
        return {"since": iso(self.since_ns), "until": iso(self.until_ns)}


def parse_window(since: str, until: str, now_ns: int | None = None) -> Window:
    """Read the options `--since` and `--until`.

    Raises: UserError if a value cannot be read or the window is empty.
    """
    now = time.time_ns() if now_ns is None else now_ns
    relative = all(text.strip() == "now" or _DURATION.fullmatch(text.strip()) for text in (since, until))
    window = Window(parse_moment("--since", since, now), parse_moment("--until", until, now), relative)
    if window.since_ns >= window.until_ns:
        raise UserError(
            f"--since {since} is not before --until {until}",
            "Put the earlier time into --since",
        )
    return window


def parse_range(option: str, text: str, now_ns: int) -> Window:
    """Read `A..B`, each as `--since` takes it.

    Raises: UserError if it is not of this form, or empty.
    """
    since, dots, until = text.partition("..")
    if not dots:
        raise UserError(f"{option} {text!r} is not of the form FROM..TO", f"Write {option} 2h..1h, for example")
    window = Window(parse_moment(option, since, now_ns), parse_moment(option, until, now_ns))
    if window.since_ns >= window.until_ns:
        raise UserError(f"{option} {text!r} ends before it begins", "Put the earlier time first")
    return window


def parse_moment(option: str, text: str, now_ns: int) -> int:
    """Return the nanoseconds since the epoch that `text` stands for.

    Raises: UserError if it is neither a duration, a time nor `now`.
    """
    value = text.strip()
    if value == "now":
        return now_ns
    if _DURATION.fullmatch(value):
        ago_ns = sum(round(float(count) * SECONDS[unit] * NS_PER_SECOND) for count, unit in _PART.findall(value))
        if ago_ns > now_ns:
            raise UserError(f"{option} {text!r} lies before 1970", ALLOWED)
        return now_ns - ago_ns
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise UserError(f"{option} {text!r} is neither a duration nor a time", ALLOWED) from None
    if not 1970 <= moment.year < LATEST_YEAR:
        raise UserError(f"{option} {text!r} is outside the years 1970 to {LATEST_YEAR - 1}", ALLOWED)
    return datetime_ns(moment)


def datetime_ns(moment: datetime) -> int:
    """Return nanoseconds since the epoch, exactly; a moment without an offset is UTC."""
    utc = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    delta = utc - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86400 + delta.seconds) * NS_PER_SECOND + delta.microseconds * 1000


def sql_time(moment_ns: int) -> str:
    """Return the text of a `DateTime64(9, 'UTC')` parameter."""
    seconds, rest = divmod(moment_ns, NS_PER_SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest:09d}"


def iso(moment_ns: int) -> str:
    """Return ISO 8601 in UTC with as many decimals as the value has."""
    seconds, rest = divmod(moment_ns, NS_PER_SECOND)
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z"


def clock(moment_ns: int) -> str:
    """Return a time of day for people: date, time to the second, UTC."""
    return f"{datetime.fromtimestamp(moment_ns // NS_PER_SECOND, UTC):%Y-%m-%d %H:%M:%S}"
