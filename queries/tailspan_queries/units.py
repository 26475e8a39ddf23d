"""Numbers for people: durations, counts and ratios with three significant digits and their unit.

Units: nanoseconds and ratios in, text out; a dash stands for what was not measured.
"""

from __future__ import annotations

import math

EN_DASH = "–"  # noqa: RUF001 (as printed tables and ranges have it)
ABSENT = EN_DASH
FULL = "█"
EIGHTHS = " ▏▎▍▌▋▊▉█"
_TIME_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


def duration(nanoseconds: float | None) -> str:
    """Return a duration such as `4.12 s`, `812 ms`, `35.1 µs`; from 10,000 s on, hours."""
    if nanoseconds is None or math.isnan(nanoseconds):
        return ABSENT
    size = abs(nanoseconds)
    if size == 0:
        return "0"
    if size >= 9_999.5e9:
        return f"{significant(nanoseconds / 3.6e12)} h"
    for scale, unit in _TIME_UNITS:
        # 999.5 of a unit would print as 1000 of it: that is 1.00 of the next.
        if size >= scale * 0.9995 or scale == 1.0:
            return f"{significant(nanoseconds / scale)} {unit}"
    return ABSENT


def significant(value: float) -> str:
    """Return a number with three significant digits and no exponent; integers from 100 on."""
    size = abs(value)
    if size >= 99.95:
        return f"{value:.0f}"
    if size < 0.005:
        return "0.00"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def percent(ratio: float | None, digits: int = 1) -> str:
    """Return a ratio as per cent; what is not zero never reads as zero."""
    if ratio is None or math.isnan(ratio):
        return ABSENT
    # Adding 0 takes the sign of a negative zero.
    text = f"{ratio * 100 + 0.0:.{digits}f}"
    if ratio and not float(text):
        return f"<{10**-digits:.{digits}f}%" if ratio > 0 else f"-<{10**-digits:.{digits}f}%"
    return f"{text}%"


def signed(ratio: float | None) -> str:
    """Return a relative change with its sign, from ten times as much on without decimals: `+4.1%`."""
    text = percent(ratio, 0 if ratio is not None and abs(ratio) >= 10 else 1)
    return f"+{text}" if ratio is not None and ratio > 0 else text


def percent_text(ratio: float, digits: int = 0) -> str:
    """Return a ratio as per cent for a sentence: `71 %`."""
    return percent(ratio, digits).replace("%", " %")


def count(number: float) -> str:
    """Return a count with thousands separators; from ten thousand on shortened, with a unit."""
    for scale, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= scale and number >= 10_000:
            return f"{significant(number / scale)} {unit}"
    return f"{0 if abs(number) < 0.5 else number:,.0f}"


def bar(ratio: float | None, width: int) -> str:
    """Return a bar that fills `ratio` of `width` columns, to an eighth of a column."""
    if ratio is None or math.isnan(ratio):
        return ""
    eighths = round(min(max(ratio, 0.0), 1.0) * width * 8)
    whole, rest = divmod(eighths, 8)
    return FULL * whole + (EIGHTHS[rest] if rest else "")


def part(amount: float, whole: float) -> float:
    """Return which part of `whole` an amount is; of nothing it is 0."""
    return amount / whole if whole else 0.0
