"""What preemption cost: who was evicted, what they lost, and the tail with and without them.

In: a client, a window, filters, what a line is about. Out: `Preemption` records, a table, JSON, CSV.
JSON, stable: `window`, `filters`, `by`, `rows` [{every column of query `preemption`}], `diagnosis`, `cautions`; CSV:
the same columns. The table leaves out lines without an eviction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from tailspan_queries import units
from tailspan_queries.breakdown import TITLES, few_requests, headline, key_text, look_at, new_table, plural
from tailspan_queries.client import Client
from tailspan_queries.console import PLAIN_WIDTH
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.times import Window

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

HARDLY = 0.01
"""Part of p99 below which a difference is none."""
ADVICE = (
    "Admit fewer requests at a time (--max-num-seqs) or give the KV cache more room "
    "(--gpu-memory-utilization, --kv-cache-dtype fp8, --max-model-len)."
)


@dataclass(frozen=True, slots=True)
class Preemption:
    """One line of the report; the names are the columns of query `preemption`."""

    key: str
    requests: int
    kept_count: int
    hit_requests: int
    hit_ratio: float
    evictions: int
    evicted_ns: float
    recompute_ns: float
    recompute_tokens: float
    extra_ns: float
    extra_ratio: float
    extra_p50_ns: float | None
    extra_p99_ns: float | None
    extra_max_ns: int | None
    e2e_p50_ns: float
    e2e_p99_ns: float
    others_e2e_p50_ns: float | None
    others_e2e_p99_ns: float | None
    hit_e2e_p50_ns: float | None
    hit_e2e_p99_ns: float | None
    e2e_without_extra_p99_ns: float
    worst_trace_id: str


@dataclass(frozen=True, slots=True)
class PreemptionReport:
    """The lines of a window, the largest loss first; minutes in the order of time."""

    window: Window
    filters: Filters
    by: str
    rows: tuple[Preemption, ...]

    @property
    def hit(self) -> tuple[Preemption, ...]:
        """The lines with an eviction."""
        return tuple(row for row in self.rows if row.evictions)


def preemption_report(
    client: Client, window: Window, filters: Filters = ALL, by: str = "engine", limit: int = 1440
) -> PreemptionReport:
    """Ask what evictions cost the requests that began in a window."""
    parameters = {**window.parameters, **filters.parameters, "by": by, "limit": limit}
    rows = tuple(Preemption(**row) for row in client.run("preemption", parameters).records())
    return PreemptionReport(window, filters, by, rows)


def render_preemption(report: PreemptionReport, width: int = PLAIN_WIDTH) -> RenderableType:
    """Return the report as tables with the diagnosis under them."""
    from rich.console import Group
    from rich.text import Text

    noun = "evicted request" if report.by == "request" else "request"
    amount = plural(sum(row.requests for row in report.rows), noun)
    parts: list[RenderableType] = [Text(headline(amount, report.window, report.filters), style="bold")]
    if report.hit:
        parts += [Text("lost: time evicted and time of the prefill that was computed again"), Text()]
        if report.by == "request":
            parts.append(request_table(report, width))
        else:
            parts += [cost_table(report, width), Text(), tail_table(report, width)]
        parts.append(Text())
    parts.append(Text(diagnose(report), style="bold"))
    if report.hit and report.by != "request":
        parts.append(Text(look_at(max(report.hit, key=lambda row: row.extra_ns).worst_trace_id)))
    return Group(*parts, *(Text(f"! {line}", style="yellow") for line in cautions(report)))


def cost_table(report: PreemptionReport, width: int) -> Table:
    """Return how many requests were evicted and what each of them lost."""
    by = report.by
    table = new_table(TITLES.get(by, by), "hit", "", "evictions", "lost p50", "p99", "max", "of e2e", "recomputed")
    for row in report.hit:
        table.add_row(
            key_text(by, row.key, width),
            units.count(row.hit_requests),
            units.percent(row.hit_ratio),
            units.count(row.evictions),
            *(units.duration(value) for value in (row.extra_p50_ns, row.extra_p99_ns, row.extra_max_ns)),
            units.percent(row.extra_ratio),
            f"{units.count(row.recompute_tokens)} tok",
        )
    return table


def tail_table(report: PreemptionReport, width: int) -> Table:
    """Return end-to-end percentiles with and without the evicted requests."""
    by = report.by
    table = new_table(TITLES.get(by, by), "e2e of", "requests", "p50", "p99")
    for row in report.hit:
        spared = row.requests - row.hit_requests
        for key, name, count, times in (
            (key_text(by, row.key, width), "all", row.requests, (row.e2e_p50_ns, row.e2e_p99_ns)),
            ("", "never evicted", spared, (row.others_e2e_p50_ns, row.others_e2e_p99_ns)),
            ("", "evicted", row.hit_requests, (row.hit_e2e_p50_ns, row.hit_e2e_p99_ns)),
        ):
            table.add_row(key, name, units.count(count), *(units.duration(value) for value in times))
    return table


def request_table(report: PreemptionReport, width: int) -> Table:
    """Return a line for each evicted request."""
    table = new_table("trace", "evictions", "evicted", "recompute", "tokens", "lost", "of e2e", "e2e")
    for row in report.hit:
        table.add_row(
            key_text("request", row.key, width),
            units.count(row.evictions),
            units.duration(row.evicted_ns),
            units.duration(row.recompute_ns),
            units.count(row.recompute_tokens),
            units.duration(row.extra_ns),
            units.percent(row.extra_ratio),
            units.duration(row.e2e_p50_ns),
        )
    return table


def diagnose(report: PreemptionReport) -> str:
    """Return one sentence about the line that lost most."""
    if not report.hit:
        return "no request was evicted."
    worst = max(report.hit, key=lambda row: row.extra_ns)
    name = f"{report.by} {key_text(report.by, worst.key, PLAIN_WIDTH)}: " if report.by != "all" else ""
    lost = f"{units.percent_text(worst.extra_ratio)} of its time"
    if report.by == "request":
        return f"{name}evictions cost {units.duration(worst.extra_ns)}, {lost}. {ADVICE}"
    return (
        f"{name}{units.percent_text(worst.hit_ratio, 1)} of requests were evicted and lost "
        f"{units.percent_text(worst.extra_ratio)} of their time; without that {without(worst)}. {ADVICE}"
    )


def without(row: Preemption) -> str:
    """Say what the tail would be without what was lost."""
    before, after = row.e2e_p99_ns, row.e2e_without_extra_p99_ns
    if before - after < HARDLY * before:
        return f"p99 would hardly change ({units.duration(before)})"
    return f"p99 would be {units.duration(after)} instead of {units.duration(before)}"


def cautions(report: PreemptionReport) -> list[str]:
    """Return what a reader must know before trusting the numbers."""
    if report.by in ("request", "minute"):
        return []
    return few_requests([row.requests for row in report.hit])


def preemption_json(report: PreemptionReport) -> dict[str, Any]:
    """Return the report as the module says."""
    return {
        "window": report.window.as_json(),
        "filters": report.filters.parameters,
        "by": report.by,
        "rows": [asdict(row) for row in report.rows],
        "diagnosis": diagnose(report),
        "cautions": cautions(report),
    }


def preemption_csv(rows: Sequence[Preemption]) -> tuple[list[str], list[list[Any]]]:
    """Return header and lines of the CSV form."""
    names = [field.name for field in fields(Preemption)]
    return names, [[getattr(row, name) for name in names] for row in rows]
