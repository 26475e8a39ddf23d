"""The page: headline, tiles and sections, put into the template.

Out: one HTML document that loads nothing and runs nothing: its Content-Security-Policy allows no script, no font, no
request. Texts of spans are escaped by the template and by `svg.element`.
Size: what `parts.MOST_ROWS`, `answers.TRACES`, `answers.MAX_BUCKETS` and `chart_layers` allow, below `MAX_BYTES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tailspan.version import __version__
from tailspan_queries import units
from tailspan_queries.breakdown import headline, plural
from tailspan_queries.latency import LatencyRow, Percentiles
from tailspan_queries.records import REQUEST
from tailspan_queries.report import sections_cause, sections_detail, sections_time
from tailspan_queries.report.answers import Answers
from tailspan_queries.report.changes import changes_of
from tailspan_queries.report.palette import stage_class
from tailspan_queries.report.parts import Cell, Section, number, sentence, time

MAX_BYTES = 1_000_000
TITLE = "Latency report"


@dataclass(frozen=True, slots=True)
class Tile:
    """One number of the summary, or three; `detail` says what it is about."""

    title: str
    values: tuple[tuple[str, Cell], ...]
    detail: str = ""


def render_page(answers: Answers, title: str = TITLE, now: datetime | None = None) -> str:
    """Return the document."""
    environment = Environment(
        loader=PackageLoader("tailspan_queries.report"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    style = (resources.files(__package__) / "templates" / "style.css").read_text(encoding="utf-8")
    written = environment.get_template("page.html").render(
        title=title,
        # The style sheet is ours; escaping would break its selectors.
        style=Markup(style),  # noqa: S704
        about=about(answers),
        headline=sentence(answers.empty or answers.stages.diagnosis),
        slowest_stage=largest_of_tail(answers),
        warnings=answers.stages.warnings,
        tiles=[] if answers.empty else tiles(answers.latency.rows[0]),
        sections=sections(answers),
        written=f"{now or datetime.now(UTC):%Y-%m-%d %H:%M} UTC by tailspan {__version__}",
    )
    return "\n".join(line.strip() for line in written.splitlines() if line.strip()) + "\n"


def largest_of_tail(answers: Answers) -> str:
    """Return the class of the stage that the diagnosis is about; that of end-to-end without one."""
    parts = [row for row in answers.stages.rows if row.stage != REQUEST]
    return stage_class(max(parts, key=lambda row: row.tail_share_ratio).stage if parts else REQUEST)


def about(answers: Answers) -> str:
    """Say which requests the page is about."""
    kept = plural(answers.stages.kept_requests, "request")
    if answers.stages.kept_requests < answers.requests:
        kept += f" kept of about {answers.requests:,}"
    return headline(kept, answers.window, answers.filters)


def sections(answers: Answers) -> list[Section]:
    """Return the sections; without requests only what was changed."""
    if answers.empty:
        return [sections_cause.changes_section(answers)]
    changes = changes_of(answers.versions, answers.entries, answers.window)
    return [
        sections_time.where_section(answers),
        sections_time.series_section(answers, changes),
        sections_time.percentile_section(answers),
        sections_time.token_section(answers),
        sections_cause.different_section(answers),
        sections_cause.regression_section(answers),
        sections_cause.changes_section(answers),
        sections_detail.layers_section(answers),
        sections_detail.slowest_section(answers),
    ]


def tiles(row: LatencyRow) -> list[Tile]:
    """Return the summary, of the numbers of `tailspan latency`."""
    found = [Tile("Requests", (("", number(row.requests)),), f"{units.significant(row.rate(row.requests))} a second")]
    aborted = f"{units.percent(row.aborted_ratio)} given up by the caller" if row.aborted_count else "of all requests"
    found.append(Tile("Failed", (("", number(row.error_count)),), f"{units.percent(row.error_ratio)} {aborted}"))
    if not row.error_count and not row.aborted_count:
        found[-1] = Tile("Failed", (("", number(0)),), "none")
    rate = number(row.rate(row.output_tokens))
    detail = f"{units.count(row.output_tokens)} generated, {units.count(row.input_tokens)} prompt tokens"
    found.append(Tile("Output tokens a second", (("", rate),), detail))
    found.append(percentile_tile("End-to-end", row.e2e))
    found.append(percentile_tile("First token (TTFT)", row.ttft))
    found.append(percentile_tile("Between tokens (ITL)", row.itl))
    found.append(percentile_tile("Time per output token (TPOT)", row.tpot))
    return found


def percentile_tile(title: str, times: Percentiles) -> Tile:
    """Return a tile with three percentiles."""
    values = (("p50", time(times.p50_ns)), ("p95", time(times.p95_ns)), ("p99", time(times.p99_ns)))
    return Tile(title, values, "" if times.count else "not reported")
