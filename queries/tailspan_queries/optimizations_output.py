"""The optimisation ledger as JSON and CSV.

JSON of a report, stable: `accounts` [{title, total_origin, total_before_ns, total_after_ns, change_ns,
improvement_ratio, tail_before_ns, tail_after_ns, before, after, listed_ns, unexplained_ns, unexplained_ratio, tokens,
tokens_needed, effects [{every column of the CSV}], stages [{stage, before_ns, after_ns, change_ns, listed_ns}],
cautions}], `prices` {gpu_memory_gib_ns, accuracy_point_ns}, `credit` {values_ns {id: ns}, orders, all_orders, missing
[[id]], runs [{window, on, mean_ns, requests}]} or null, `warnings`. A pair of numbers is the least and the most.
CSV of a report: one line an effect. JSON and CSV of a list: the fields of an entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tailspan_queries.optimizations_credit import Credit
from tailspan_queries.optimizations_records import Account, Effect, LedgerReport, Optimization, Prices
from tailspan_queries.times import Window

EFFECT_COLUMNS = (
    "account",
    "id",
    "name",
    "place",
    "origin",
    "per",
    "before_ns",
    "after_ns",
    "improvement_ratio",
    "gain_low_ns",
    "gain_high_ns",
    "contribution_low_ratio",
    "contribution_high_ratio",
    "interval_low_ns",
    "interval_high_ns",
    "tail_gain_ns",
    "tail_contribution_ratio",
    "e2e_before_ns",
    "e2e_after_ns",
    "requests_before",
    "requests_after",
    "counted",
    "return_low_ns",
    "return_high_ns",
    "cost",
    "cost_gpu_memory_bytes",
    "cost_accuracy_points",
    "why",
)


def ledger_json(report: LedgerReport) -> dict[str, Any]:
    """Return the report as the module says."""
    return {
        "accounts": [account_json(account, report.prices) for account in report.accounts],
        "prices": asdict(report.prices),
        "credit": credit_json(report.credit) if report.credit else None,
        "warnings": list(report.warnings),
    }


def account_json(account: Account, prices: Prices) -> dict[str, Any]:
    """Return one account."""
    low, high = account.unexplained_ns
    return {
        "title": account.title,
        "total_origin": account.total_origin,
        "total_before_ns": account.total_before_ns,
        "total_after_ns": account.total_after_ns,
        "change_ns": account.change_ns,
        "improvement_ratio": account.improvement_ratio,
        "tail_before_ns": account.tail_before_ns,
        "tail_after_ns": account.tail_after_ns,
        "before": window_json(account.before),
        "after": window_json(account.after),
        "listed_ns": list(account.listed_ns),
        "unexplained_ns": [low, high],
        "unexplained_ratio": [account.share(low), account.share(high)],
        "tokens": list(account.tokens) if account.tokens else None,
        "tokens_needed": account.tokens_needed,
        "effects": [effect_json(account, effect, prices) for effect in account.effects],
        "stages": [
            {
                "stage": row.stage,
                "before_ns": row.before_ns,
                "after_ns": row.after_ns,
                "change_ns": row.change_ns,
                "listed_ns": list(row.listed_ns),
            }
            for row in account.stages
        ],
        "cautions": list(account.cautions),
    }


def effect_json(account: Account, effect: Effect, prices: Prices) -> dict[str, Any]:
    """Return one effect by the names of `EFFECT_COLUMNS`."""
    item, found = effect.optimization, effect.measured
    interval = found.interval_ns if found and found.interval_ns else (None, None)
    worth = effect.worth_ns(prices)
    tail = found.tail_gain_ns if found else None
    known = effect.origin != "nothing"
    return {
        "account": account.title,
        "id": item.id,
        "name": item.name,
        "place": item.place,
        "origin": effect.origin,
        "per": effect.per,
        "before_ns": effect.before_ns if known else None,
        "after_ns": effect.after_ns if known else None,
        "improvement_ratio": effect.improvement_ratio if known else None,
        "gain_low_ns": effect.gain_ns[0] if known else None,
        "gain_high_ns": effect.gain_ns[1] if known else None,
        "contribution_low_ratio": account.share(effect.gain_ns[0]) if known else None,
        "contribution_high_ratio": account.share(effect.gain_ns[1]) if known else None,
        "interval_low_ns": interval[0],
        "interval_high_ns": interval[1],
        "tail_gain_ns": tail,
        "tail_contribution_ratio": account.tail_share(tail) if tail is not None else None,
        "e2e_before_ns": found.e2e_before_ns if found else None,
        "e2e_after_ns": found.e2e_after_ns if found else None,
        "requests_before": found.requests_before if found else None,
        "requests_after": found.requests_after if found else None,
        "counted": effect.counted,
        "return_low_ns": worth[0] if known else None,
        "return_high_ns": worth[1] if known else None,
        "cost": item.cost.text,
        "cost_gpu_memory_bytes": item.cost.gpu_memory_bytes,
        "cost_accuracy_points": item.cost.accuracy_points,
        "why": effect.why,
    }


def ledger_csv(report: LedgerReport) -> tuple[list[str], list[list[Any]]]:
    """Return header and lines of the effects."""
    rows = [effect_json(account, effect, report.prices) for account in report.accounts for effect in account.effects]
    return list(EFFECT_COLUMNS), [[row[name] for name in EFFECT_COLUMNS] for row in rows]


def credit_json(credit: Credit) -> dict[str, Any]:
    """Return the shared credit."""
    return {
        "values_ns": dict(credit.values_ns),
        "orders": credit.orders,
        "all_orders": credit.all_orders,
        "missing": [sorted(subset) for subset in credit.missing],
        "runs": [
            {"window": run.window.as_json(), "on": sorted(run.on), "mean_ns": run.mean_ns, "requests": run.requests}
            for run in credit.runs
        ],
    }


def window_json(window: Window | None) -> dict[str, str] | None:
    """Return a window's ends."""
    return window.as_json() if window else None


def list_json(entries: Sequence[Optimization]) -> list[dict[str, Any]]:
    """Return the entries of the ledger."""
    return [
        {
            "id": item.id,
            "name": item.name,
            "stage": item.stage,
            "layer": item.layer,
            "kind": item.kind,
            "before": window_json(item.before),
            "after": window_json(item.after),
            "filters": item.filters.parameters,
            "cost": asdict(item.cost),
            "claim": asdict(item.claim) if item.claim else None,
            "source": item.source,
            "recorded_by": item.recorded_by,
            "recorded": item.recorded,
            "removed": item.removed,
        }
        for item in entries
    ]


def list_csv(entries: Sequence[Optimization]) -> tuple[list[str], list[list[Any]]]:
    """Return header and lines of the entries; what is nested stands as JSON."""
    rows = list_json(entries)
    header = ["id", "name", "stage", "layer", "kind", "before", "after", "filters", "cost", "claim", "source"]
    header += ["recorded_by", "recorded", "removed"]
    return header, [[row[name] for name in header] for row in rows]
