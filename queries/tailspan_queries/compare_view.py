"""The comparison for people (rich), programs (JSON) and spreadsheets (CSV).

JSON, stable: `before` and `after` {windows, filters, attribute, value, requests, read_requests, read_ratio, rate_per_s,
error_ratio, block_ns, blocks}, `adjusted`, `strata`, `lines` [{part, statistic, before_count, after_count, before_ns,
mix_ns, adjusted_ns, after_ns, change_ns, change_ratio, low_ns, high_ns, low_ratio, high_ratio, p_value, verdict,
too_few}], `mix` [{statistic, ratio, low_ratio, high_ratio}], `findings`, `cautions`. `read_ratio` is the part of the
traces that was read. `low_ns` to `high_ns` is the 95 % interval of `change_ns`, which is after less adjusted; ratios
are of adjusted. `mix` is what other lengths alone did to the end-to-end time, as a share of its earlier value, with its
95 % interval. CSV: the lines.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tailspan_queries import units
from tailspan_queries.breakdown import new_table, plural
from tailspan_queries.compare_findings import NAMES, title
from tailspan_queries.compare_records import REQUEST, STATISTICS, Comparison, Group, Line, Sample
from tailspan_queries.console import STAGE_STYLES
from tailspan_queries.times import clock
from tailspan_queries.units import signed

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

BRIEF = ("mean", "p50", "p99")
"""Statistics of a stage that are shown unless all are asked for."""
VERDICT_STYLES = {"better": "green", "worse": "bold red"}
FEW = "too few"
SHOUT = "THE MEDIAN"
COLUMNS = (
    "part",
    "statistic",
    "before_count",
    "after_count",
    "before_ns",
    "mix_ns",
    "adjusted_ns",
    "after_ns",
    "change_ns",
    "change_ratio",
    "low_ns",
    "high_ns",
    "low_ratio",
    "high_ratio",
    "p_value",
    "verdict",
    "too_few",
)


def render_comparison(report: Comparison, *, full: bool = False) -> RenderableType:
    """Return the report as a table with findings and cautions under it."""
    from rich.console import Group as Lines
    from rich.text import Text

    parts: list[RenderableType] = [
        Text(f"before  {describe(report.before)}", style="bold"),
        Text(f"after   {describe(report.after)}", style="bold"),
        Text(legend(report), style="dim"),
        Text(),
    ]
    if report.lines:
        parts += [comparison_table(report, full=full), Text()]
    parts += [Text(line, style="bold red" if line.startswith(SHOUT) else "bold") for line in report.findings]
    return Lines(*parts, *(Text(f"! {line}", style="yellow") for line in report.cautions))


def describe(sample: Sample) -> str:
    """Say which requests a side is about."""
    group = sample.group
    first = group.windows[0]
    between = f"{clock(first.since_ns)} to {clock(first.until_ns)} UTC"
    if len(group.windows) > 1:
        between = f"{len(group.windows)} windows from {between}"
    chosen = " · ".join(f"{name} {value}" for name, value in group.filters.chosen.items())
    attribute = f"{group.key}={group.value}" if group.key else ""
    requests = plural(round(sample.requests), "request")
    return " · ".join(filter(None, (requests, between, attribute, chosen)))


def legend(report: Comparison) -> str:
    """Say what the columns mean."""
    seconds = units.duration(report.after.block_ns)
    text = f"change and its 95 % interval (blocks of {seconds} resampled)"
    if not report.adjusted:
        return f"{text}; not adjusted for the mix of lengths"
    if report.strata == 1:
        return f"{text}; one stratum of lengths: nothing to adjust"
    return f"{text}; `mix` is what other prompt and output lengths moved ({report.strata} strata), change is the rest"


def comparison_table(report: Comparison, *, full: bool) -> Table:
    """Return a line for each statistic; of the stages only some unless `full`."""
    titles = ["", "before", *(["mix"] if report.adjusted else []), "after", "change", "%", "95 % interval", ""]
    table = new_table("", *titles)
    for part in filter(lambda part: takes_time(report, part), report.part_names):
        shown = STATISTICS if full or part in NAMES else BRIEF
        for number, statistic in enumerate(shown):
            if line := report.line(part, statistic):
                table.add_row(*row(report, line, first=number == 0))
        if full or part in NAMES:
            table.add_section()
    return table


def takes_time(report: Comparison, part: str) -> bool:
    """Whether a part took any time on either side."""
    return any(line.before_ns or line.after_ns for line in report.lines if line.part == part)


def row(report: Comparison, line: Line, *, first: bool) -> list[Text | str]:
    """Return the cells of one line; the part is named in the first of its lines."""
    from rich.text import Text

    style = STAGE_STYLES.get(line.part, "bold" if line.part == REQUEST else "white")
    interval = units.ABSENT
    if line.low_ns is not None and line.high_ns is not None:
        interval = f"{change(line.low_ns, line)} to {change(line.high_ns, line)}"
    verdict = FEW if line.too_few else line.verdict
    return [
        Text(title(line.part) if first else "", style=style),
        line.statistic,
        units.duration(line.before_ns),
        *([plus(line.mix_ns)] if report.adjusted else []),
        units.duration(line.after_ns),
        plus(line.change_ns),
        signed(line.change_ratio),
        interval,
        Text(verdict, style=VERDICT_STYLES.get(verdict, "dim")),
    ]


def change(amount_ns: float, line: Line) -> str:
    """Return one end of an interval: as a share where there is something to be a share of."""
    ratio = line.ratio(amount_ns)
    return plus(amount_ns) if ratio is None else signed(ratio)


def plus(amount_ns: float | None) -> str:
    """Return a difference with its sign."""
    text = units.duration(amount_ns)
    return f"+{text}" if amount_ns is not None and amount_ns > 0 else text


def comparison_json(report: Comparison) -> dict[str, Any]:
    """Return the report as the module says."""
    return {
        "before": side_json(report.before),
        "after": side_json(report.after),
        "adjusted": report.adjusted,
        "strata": report.strata,
        "lines": [line_values(line) for line in report.lines],
        "mix": [asdict(effect) for effect in report.mix],
        "findings": list(report.findings),
        "cautions": list(report.cautions),
    }


def side_json(sample: Sample) -> dict[str, Any]:
    """Return what one side is about."""
    group: Group = sample.group
    return {
        "windows": [window.as_json() for window in group.windows],
        "filters": group.filters.parameters,
        "attribute": group.key,
        "value": group.value,
        "requests": round(sample.requests),
        "read_requests": sample.size,
        "read_ratio": sample.kept_ratio,
        "rate_per_s": sample.rate,
        "error_ratio": sample.error_ratio,
        "block_ns": sample.block_ns,
        "blocks": sample.block_count,
    }


def line_values(line: Line) -> dict[str, Any]:
    """Return one line by the names of `COLUMNS`."""
    ratios = {"low_ratio": line.ratio(line.low_ns), "high_ratio": line.ratio(line.high_ns)}
    return {name: ratios[name] if name in ratios else getattr(line, name) for name in COLUMNS}


def comparison_csv(report: Comparison) -> tuple[list[str], list[list[Any]]]:
    """Return header and lines of the CSV form."""
    return list(COLUMNS), [list(line_values(line).values()) for line in report.lines]
