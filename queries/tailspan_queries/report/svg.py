"""Small pieces of SVG: elements whose texts and attributes are escaped, scales, ticks, marks.

In: numbers and text. Out: `Markup`, safe to put into a page whatever the text holds.
Colours are never written here: elements have classes (`k-queue`, `fill`, `line`), the style sheet knows light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup, escape

from tailspan_queries import units
from tailspan_queries.times import NS_PER_SECOND

Scale = Callable[[float], float]
WIDE, NARROW = 1040, 352
"""Widths for which each chart is drawn: for a desk or paper, and for a phone."""
TIME_STEPS_S = (60, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 1_209_600)
LABEL_CHARACTERS = 26
TIP_CHARACTERS, SAID_CHARACTERS = 200, 1000
"""Longest text at one mark, and of a whole picture."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A rectangle in which data are drawn, in units of the picture."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        """From left to right."""
        return self.right - self.left


def element(tag: str, *children: str | Markup, **attributes: str | float | None) -> Markup:
    """Return one element; `class_` is written class, `stroke_width` stroke-width, None not at all."""
    pairs = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items() if value is not None)
    written = Markup("").join(Markup(' {}="{}"').format(name, text_of(value)) for name, value in pairs)
    return Markup("<{}{}>{}</{}>").format(Markup(tag), written, Markup("").join(map(escape, children)), Markup(tag))  # noqa: S704 (names of elements are ours)


def text_of(value: str | float) -> str:
    """Return an attribute's value; numbers with one decimal at most."""
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def picture(width: float, height: float, title: str, description: str, key: str, *children: Markup) -> Markup:
    """Return a whole picture with its name and description for those who cannot see it."""
    # Ids are by width: the page holds the picture twice and shows one.
    name, said = f"{key}-{width:.0f}-t", f"{key}-{width:.0f}-d"
    return element(
        "svg",
        element("title", short(title, TIP_CHARACTERS), id=name),
        element("desc", short(description, SAID_CHARACTERS), id=said),
        *children,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        role="img",
        aria_labelledby=f"{name} {said}",
        class_="wide" if width == WIDE else "narrow",
    )


def text(x: float, y: float, words: str, class_: str = "", anchor: str = "start") -> Markup:
    """Return words at a point; `anchor` is start, middle or end."""
    return element(
        "text",
        short(words, TIP_CHARACTERS),
        x=x,
        y=y,
        class_=class_ or None,
        text_anchor=None if anchor == "start" else anchor,
    )


def rect(x: float, y: float, width: float, height: float, class_: str, tip: str = "", rx: float = 0) -> Markup:
    """Return a rectangle; `tip` is shown under the pointer."""
    return element("rect", *tip_of(tip), x=x, y=y, width=max(width, 0.5), height=height, class_=class_, rx=rx or None)


def tip_of(words: str) -> list[Markup]:
    """Return what a mark shows under the pointer; nothing for no words."""
    return [element("title", short(words, TIP_CHARACTERS))] if words else []


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """Return a straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def path(points: Iterable[tuple[float, float]], class_: str) -> Markup:
    """Return a line through points."""
    return element("path", d="M" + " ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_=class_)


def dot(x: float, y: float, class_: str, tip: str = "", radius: float = 3) -> Markup:
    """Return a point; `tip` is shown under the pointer."""
    return element("circle", *tip_of(tip), cx=x, cy=y, r=radius, class_=class_)


def linear(low: float, high: float, begin: float, end: float) -> Scale:
    """Return the scale that maps low to `begin` and high to `end`."""
    span = (high - low) or 1.0
    return lambda value: begin + (value - low) / span * (end - begin)


def logarithmic(low: float, high: float, begin: float, end: float) -> Scale:
    """Return the log scale that maps low to `begin` and high to `end`; both are above 0."""
    of_log = linear(math.log(low), math.log(high), begin, end)
    return lambda value: of_log(math.log(max(value, low)))


def log_range(values: Iterable[float]) -> tuple[float, float]:
    """Return bounds for a log axis: 1, 2 or 5 times a power of ten around the values, ns."""
    positive = [value for value in values if value > 0]
    low, high = (min(positive), max(positive)) if positive else (1e6, 1e9)
    below = max(tick for tick in candidates(low) if tick <= low * 1.0001)
    above = min(tick for tick in candidates(high) if tick >= high * 0.9999)
    return (below, above) if below < above else (below, below * 10)


def candidates(value: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten around a value."""
    power = math.floor(math.log10(value))
    return [digit * 10.0**exponent for exponent in (power - 1, power, power + 1) for digit in (1, 2, 5)]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Return ticks of a log axis: each of 1, 2, 5 if so many fit, else powers of ten, or only some of them."""
    powers = range(math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9) + 1)
    for digits, every in (((1, 2, 5), 1), ((1, 3), 1), ((1,), 1), ((1,), 2), ((1,), 3)):
        ticks = [digit * 10.0**power for power in powers[::every] for digit in digits]
        found = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(found) <= most:
            return found
    return [low, high]


def tick_text(nanoseconds: float) -> str:
    """Return a tick of an axis of times: `500 ms`, `2 s`."""
    number, _, unit = units.duration(nanoseconds).partition(" ")
    return f"{float(number):g} {unit}".strip()


def even_ticks(high: float, most: int = 4) -> list[float]:
    """Return round ticks from 0 up to at least `high`."""
    rough = (high or 1.0) / most
    step = next(tick for tick in sorted(candidates(rough)) if tick >= rough * 0.9999)
    return [number * step for number in range(math.ceil(high / step - 1e-9) + 1)] if high > 0 else [0.0, step]


def time_ticks(since_ns: int, until_ns: int, most: int) -> list[tuple[int, str]]:
    """Return round times, ns, with their labels: times of day, or dates where the window has many."""
    seconds = (until_ns - since_ns) / NS_PER_SECOND
    step = next(
        (step for step in TIME_STEPS_S if seconds / step <= most), math.ceil(seconds / most / 604_800) * 604_800
    )
    step_ns = step * NS_PER_SECOND
    form = "%H:%M" if step < 86_400 else "%d %b"
    first = -(-since_ns // step_ns) * step_ns
    return [
        (moment, datetime.fromtimestamp(moment // NS_PER_SECOND, UTC).strftime(form))
        for moment in range(first, until_ns + 1, step_ns)
    ]


def short(words: str, most: int = LABEL_CHARACTERS) -> str:
    """Return words that fit beside a mark."""
    return words if len(words) <= most else words[: most - 1] + "…"
