"""The stage report: how long every stage takes, and its share of all requests and of the slowest.

In: a client, a window, filters. Out: `StageReport`.
Percentiles come from the raw spans (exact) up to `EXACT_LIMIT` stored requests, above it from the rollups, whose
window is widened to whole minutes, or to whole hours where `times` says so. Of more than `tail.READ_LIMIT`, shares of
the tail then are of a sample, with a margin.
Percentile q of the rollup is within 0.8 % of the value at rank ceil(q * n) of the sorted spans.
Sampled requests count with their weight everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tailspan_queries import diagnosis, sampling
from tailspan_queries.client import Client
from tailspan_queries.events import warning_lines, worker_events
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.records import (
    EXACT,
    QUANTILES,
    REQUEST,
    ROLLUP,
    TAIL_QUANTILE,
    Distribution,
    Method,
    StageReport,
    StageRow,
    Tail,
)
from tailspan_queries.sampling import WHOLE, Sample
from tailspan_queries.tail import READ_LIMIT
from tailspan_queries.times import Window

EXACT_LIMIT = 100_000
"""Stored requests up to which the raw spans are read unless the caller decides."""


def stage_report(
    client: Client,
    window: Window,
    filters: Filters = ALL,
    *,
    method: Method | None = None,
    tail_quantile: float = TAIL_QUANTILE,
    warnings: Sequence[str] = (),
) -> StageReport:
    """Ask ClickHouse and return the report.

    `warnings` are lines that the caller wants under the table, after those about crashes, stalls and drops.
    Raises: UserError as `client` says.
    """
    parameters = {**window.parameters, **filters.parameters}
    chosen = method or choose_method(client, window, filters)
    if chosen is ROLLUP:
        window = window.for_rollup
        parameters |= window.parameters
    stages = client.run("stages" if chosen is EXACT else "stages_rollup", parameters).records()
    sample = sampling.choose(client, window, filters, READ_LIMIT, everything=chosen is EXACT)
    tail = tail_rows(client, {**parameters, "quantile": tail_quantile}, sample)
    report = build(window, filters, chosen, stages, tail, tail_quantile, sample)
    events = worker_events(client, window, filters)
    return replace(report, warnings=(*warning_lines(events), *warnings), events=events)


def choose_method(client: Client, window: Window, filters: Filters) -> Method:
    """Return the exact method as long as the stored requests are few enough to find and read one by one."""
    found = sampling.stored(client, (window,), filters)
    return EXACT if found.kept <= EXACT_LIMIT and found.scanned <= sampling.SCAN_LIMIT else ROLLUP


def tail_rows(client: Client, parameters: Mapping[str, Any], sample: Sample) -> list[dict[str, Any]]:
    """Return the stages of the tail: of a sample with their margins, of everything without reading all of it twice."""
    return client.run("tail_share" if sample.whole else "tail_by", {**parameters, **sample.parameters}).records()


def build(
    window: Window,
    filters: Filters,
    method: Method,
    stages: Sequence[Mapping[str, Any]],
    tail_rows: Sequence[Mapping[str, Any]],
    tail_quantile: float,
    sample: Sample = WHOLE,
) -> StageReport:
    """Join the answers of both queries into a report."""
    tails = {row["stage"]: row for row in tail_rows}
    rows = tuple(stage_row(row, tails.get(row["stage"], {})) for row in stages)
    whole = tails.get(REQUEST)
    tail = Tail(
        quantile=tail_quantile,
        requests=whole["tail_requests"] if whole else 0,
        threshold_ns=whole["threshold_ns"] if whole else 0.0,
        mean_ns=whole["tail_mean_ns"] if whole else 0.0,
        sample=sample,
    )
    requests = next((row.count for row in rows if row.stage == REQUEST), 0)
    return StageReport(
        window=window,
        filters=filters,
        method=method,
        requests=requests,
        rows=rows if requests else (),
        tail=tail,
        diagnosis=diagnosis.diagnose(rows, tail),
        cautions=diagnosis.cautions(rows, tail),
    )


def stage_row(row: Mapping[str, Any], tail: Mapping[str, Any]) -> StageRow:
    """Turn one row of the stages query and its row of the tail query into a record."""
    return StageRow(
        stage=row["stage"],
        count=row["count"],
        kept_count=row["kept_count"],
        error_count=row["error_count"],
        share_ratio=row["share_ratio"],
        tail_share_ratio=tail.get("tail_share_ratio", 0.0),
        tail_mean_ns=tail.get("tail_mean_ns", 0.0),
        variance_share_ratio=row.get("variance_share_ratio"),
        wall=distribution(row, "wall", row["count"]),
        busy=distribution(row, "busy", row["count"]) if row["busy_p50_ns"] is not None else None,
        gpu=distribution(row, "gpu", row["gpu_count"]) if row["gpu_p50_ns"] is not None else None,
        tail_share_margin_ratio=tail.get("tail_share_margin_ratio"),
    )


def distribution(row: Mapping[str, Any], kind: str, count: int) -> Distribution:
    """Collect the columns of one kind of time: `wall`, `busy` or `gpu`."""
    names = ("sum", *QUANTILES, "max")
    return Distribution(count, **{f"{name}_ns": row[f"{kind}_{name}_ns"] for name in names})
