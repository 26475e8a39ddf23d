"""The latency report for programs (JSON) and spreadsheets (CSV).

JSON, stable: `window`, `filters`, `by`, `step_seconds`, `read_ratio`, `slos` [{metric, limit_ns}], `requests`,
`kept_requests`, `group_count`, `rows` [{bucket, key, rank, seconds, active_seconds, requests, kept_requests, completed,
error_count, aborted_count, input_tokens, output_tokens, requests_per_s, input_tokens_per_s, output_tokens_per_s,
ttft_ns, itl_ns, tpot_ns, e2e_ns, goodput}]. The four are {count, mean, p50, p90, p95, p99, p999, max}, null where there
is nothing. `goodput` is null without limits, else {good, good_ratio, good_per_s, met, missed_alone}, the last two by
metric. `bucket` is the begin in UTC, null without --over; a bucket or group without requests has no row.
CSV: the same, one column a number.
"""

from __future__ import annotations

from typing import Any

from tailspan_queries.goodput import METRICS
from tailspan_queries.latency import LatencyReport, LatencyRow
from tailspan_queries.records import QUANTILES
from tailspan_queries.times import iso

NAMES = ("mean", *QUANTILES, "max")


def latency_json(report: LatencyReport) -> dict[str, Any]:
    """Return the report as the module says."""
    return {
        "window": report.window.as_json(),
        "filters": report.filters.parameters,
        "by": report.grouping.name,
        "step_seconds": report.grouping.step_seconds,
        "read_ratio": report.sample.ratio,
        "slos": [{"metric": slo.metric, "limit_ns": slo.limit_ns} for slo in report.slos],
        "requests": report.requests,
        "kept_requests": report.kept_requests,
        "group_count": report.group_count,
        "rows": [row_json(row) for row in report.rows],
    }


def row_json(row: LatencyRow) -> dict[str, Any]:
    """Return one row as a JSON object."""
    times = {
        f"{metric}_ns": {
            "count": getattr(row, metric).count,
            **{name: getattr(getattr(row, metric), f"{name}_ns") for name in NAMES},
        }
        for metric in METRICS
    }
    return {**described(row), **times, "goodput": goodput_json(row)}


def described(row: LatencyRow) -> dict[str, Any]:
    """Return what a row is about, its counts and rates."""
    return {
        "bucket": None if row.bucket_ns is None else iso(row.bucket_ns),
        "key": row.key,
        "rank": row.rank,
        "seconds": row.seconds,
        "active_seconds": row.active_seconds,
        "requests": row.requests,
        "kept_requests": row.kept_requests,
        "completed": row.completed,
        "error_count": row.error_count,
        "aborted_count": row.aborted_count,
        "input_tokens": row.input_tokens,
        "output_tokens": row.output_tokens,
        "requests_per_s": row.rate(row.requests),
        "input_tokens_per_s": row.rate(row.input_tokens),
        "output_tokens_per_s": row.rate(row.output_tokens),
    }


def goodput_json(row: LatencyRow) -> dict[str, Any] | None:
    """Return the goodput of a row as a JSON object."""
    found = row.goodput
    if found is None:
        return None
    return {
        "good": found.good,
        "good_ratio": found.good_ratio,
        "good_per_s": row.rate(found.good),
        "met": {met.slo.metric: met.met for met in found.limits},
        "missed_alone": {met.slo.metric: met.missed_alone for met in found.limits},
    }


def latency_csv(report: LatencyReport) -> tuple[list[str], list[list[Any]]]:
    """Return header and lines of the CSV form."""
    lines: list[list[Any]] = []
    header: list[str] = []
    for row in report.rows:
        found = described(row)
        for metric in METRICS:
            times = getattr(row, metric)
            found[f"{metric}_count"] = times.count
            found |= {f"{metric}_{name}_ns": getattr(times, f"{name}_ns") for name in NAMES}
        good = goodput_json(row) or {}
        found |= {name: good.get(name) for name in ("good", "good_ratio", "good_per_s")}
        for metric in METRICS:
            found[f"{metric}_met"] = good.get("met", {}).get(metric)
            found[f"{metric}_missed_alone"] = good.get("missed_alone", {}).get(metric)
        header = list(found)
        lines.append(list(found.values()))
    return header, lines
