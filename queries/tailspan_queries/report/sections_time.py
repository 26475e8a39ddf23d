"""Sections about time: what it is spent on, percentiles, TTFT and gaps between tokens, and when."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from tailspan_queries import units
from tailspan_queries.diagnosis import quantile_name
from tailspan_queries.goodput import METRICS, TITLES
from tailspan_queries.grouping import bucket_text
from tailspan_queries.latency import LatencyRow, Percentiles
from tailspan_queries.records import QUANTILES, REQUEST
from tailspan_queries.report import chart_curves, chart_histogram, chart_series, chart_shares, svg
from tailspan_queries.report.answers import Answers, BucketRow
from tailspan_queries.report.changes import Change
from tailspan_queries.report.palette import stage_class
from tailspan_queries.report.parts import (
    Cell,
    Figure,
    Section,
    Table,
    command,
    exact,
    figure,
    number,
    sample_parameters,
    sentence,
    share,
    table,
    time,
    words,
)
from tailspan_queries.stages_by_view import step_text

NAMES = ("mean", *QUANTILES, "max")
MOST_STAGES = 40


def where_section(answers: Answers) -> Section:
    """Say what mean and tail are made of."""
    report = answers.tail
    parts = [row for row in report.rows if row.stage != REQUEST]
    legend = [(stage_class(row.stage), row.stage) for row in parts if max(row.share_ratio, row.tail_share_ratio) > 0]
    drawn = figure(lambda width: chart_shares.shares(report, width), legend=legend[:MOST_STAGES])
    rows = [
        [
            words(row.stage, stage_class(row.stage)),
            time(row.mean_ns),
            share(row.share_ratio),
            time(row.tail_mean_ns),
            share(row.tail_share_ratio),
            *([] if report.sample.whole else [share(row.tail_share_margin_ratio)]),
            share(row.variance_share_ratio),
        ]
        for row in report.rows
    ]
    margin = () if report.sample.whole else ("±",)
    columns = ("stage", "mean", "share of mean", "mean in the tail", "share of tail", *margin, "share of variance")
    return Section(
        "where",
        "Where the time goes",
        sentence(report.diagnosis),
        (drawn,),
        tables=(table("Shares of every stage", columns, rows, MOST_STAGES),),
        notes=report.cautions,
        commands=(command("tail", answers.window, answers.filters),),
    )


def percentile_section(answers: Answers) -> Section:
    """Show how long stages take."""
    report = answers.stages
    rows = chart_curves.drawn_rows(report, svg.WIDE)
    drawn = figure(
        lambda width: chart_curves.curves(report, width),
        caption="Both axes are logarithmic. A steep line is a long tail; hollow marks rest on few requests.",
        legend=[(stage_class(row.stage), "end-to-end" if row.stage == REQUEST else row.stage) for row in rows],
    )
    lines = [
        [
            words(row.stage, stage_class(row.stage)),
            number(row.count),
            *(time(getattr(row.wall, f"{name}_ns")) for name in QUANTILES),
            time(row.wall.max_ns),
        ]
        for row in report.rows
    ]
    columns = ("stage", "count", *map(quantile_name, QUANTILES.values()), "max")
    whole = next(row for row in report.rows if row.stage == REQUEST).wall
    answer = (
        f"Half of the requests took {units.duration(whole.p50_ns)} or less, one in a hundred "
        f"{units.duration(whole.p99_ns)} or more, the slowest {units.duration(whole.max_ns)}."
    )
    return Section(
        "percentiles",
        "How long it takes",
        answer,
        (drawn,),
        tables=(table("Percentiles of every stage", columns, lines, MOST_STAGES),),
        notes=(report.method.statement, *report.cautions),
        commands=(command("stages", answers.window, answers.filters),),
    )


def token_section(answers: Answers) -> Section:
    """Show how TTFT and gaps between tokens are distributed."""
    row = answers.latency.rows[0]
    figures = [
        drawn
        for metric, noun in (("ttft", "requests"), ("itl", "gaps between tokens"))
        if (drawn := distribution(answers.buckets, metric, getattr(row, metric), noun))
    ]
    lines = [
        [words(TITLES[metric]), number(found.count), *(time(getattr(found, f"{name}_ns")) for name in NAMES)]
        for metric in METRICS
        if (found := getattr(row, metric)).count
    ]
    columns = ("metric", "count", "mean", *map(quantile_name, QUANTILES.values()), "max")
    answer = "No request of the window reported a first token or gaps between tokens."
    if row.ttft.count:
        answer = f"The first token came after {span_text(row.ttft)}"
        answer += f", the next ones every {span_text(row.itl)}." if row.itl.count else "; gaps were not reported."
    buckets = [
        [words(found.metric), time(found.low_ns), time(found.high_ns), number(found.count)]
        for found in answers.buckets
        if found.metric != "e2e"
    ]
    return Section(
        "tokens",
        "First token, next tokens",
        answer,
        tuple(figures),
        tables=(
            table("TTFT, ITL, TPOT and end-to-end time", columns, lines),
            table("Bars of the histograms", ("metric", "above", "up to", "count"), buckets),
        ),
        notes=(answers.latency.statement,),
        commands=(
            command("latency", answers.window, answers.filters),
            command(
                "query latency_buckets" + sample_parameters(answers.latency.sample),
                answers.window,
                answers.filters,
            ),
        ),
    )


def distribution(rows: Sequence[BucketRow], metric: str, times: Percentiles, noun: str) -> Figure | None:
    """Draw the histogram of one metric; None if nothing reported it."""
    found = [row for row in rows if row.metric == metric]
    if not found or not times.count:
        return None
    title = {"ttft": "Time to first token (TTFT)", "itl": "Time between tokens (ITL)"}[metric]

    def draw(width: float) -> Markup:
        return chart_histogram.histogram(found, times, title, noun, f"hist-{metric}", width)

    return figure(draw, title)


def span_text(times: Percentiles) -> str:
    """Return median and p99 in words."""
    return f"{units.duration(times.p50_ns)} (p99 {units.duration(times.p99_ns)})"


def series_section(answers: Answers, changes: tuple[Change, ...]) -> Section:
    """Show when it was slow, with what was changed."""
    report = answers.series
    if not report.rows:
        return Section("series", "When it was slow", "No request began in the time that could be drawn.")
    step = step_text(report.grouping.step_seconds)
    window = report.window
    legend = [(style, title) for title, style, _ in chart_series.LINES] + [("s-failed", "failed")]
    drawn = figure(
        lambda width: chart_series.series(report, window, changes, width),
        caption=f"Buckets of {step}, UTC. A request counts where it began.",
        legend=legend,
    )
    slowest = max(report.rows, key=lambda row: row.e2e.p99_ns or 0.0)
    answer = (
        f"End-to-end p99 was largest in the {step.removeprefix('1 ')} from {when(answers, slowest)} UTC: "
        f"{units.duration(slowest.e2e.p99_ns)}, p50 {units.duration(slowest.e2e.p50_ns)}."
    )
    rates = ("begin (UTC)", "requests", "a second", "failed", "tokens a second")
    columns = (*rates, "e2e p50", "e2e p99", "TTFT p50", "TTFT p99", "ITL p99")
    return Section(
        "series",
        "When it was slow",
        answer,
        (drawn,),
        tuple((change.kind, f"{change.number} · {moment(change)} · {change.text}") for change in changes),
        (series_table(answers, columns),),
        (report.statement,),
        (command(f"latency --over {over_text(report.grouping.step_seconds)}", window, answers.filters),),
    )


def series_table(answers: Answers, columns: Sequence[str]) -> Table:
    """Return a line for each bucket of time."""
    rows = [
        [
            Cell(when(answers, row), exact((row.bucket_ns or 0) // 1_000_000_000), "s since 1970"),
            number(row.requests),
            number(row.rate(row.requests)),
            number(row.error_count),
            number(row.rate(row.output_tokens)),
            time(row.e2e.p50_ns),
            time(row.e2e.p99_ns),
            time(row.ttft.p50_ns),
            time(row.ttft.p99_ns),
            time(row.itl.p99_ns),
        ]
        for row in answers.series.rows
    ]
    return table("Every bucket of time", columns, rows)


def when(answers: Answers, row: LatencyRow) -> str:
    """Return the begin of a bucket."""
    return bucket_text(row.bucket_ns or 0, answers.series.grouping.step_seconds)


def moment(change: Change) -> str:
    """Return when something was changed."""
    return bucket_text(change.moment_ns, 1)


def over_text(seconds: int) -> str:
    """Return a step as `--over` takes it."""
    return next(
        f"{seconds // size}{unit}" for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")) if seconds % size == 0
    )
