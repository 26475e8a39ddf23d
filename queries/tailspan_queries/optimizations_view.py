"""The optimisation ledger for people (rich).

Beside `optimizations_output`, which has the forms for programs.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from tailspan_queries import units
from tailspan_queries.breakdown import new_table, plural
from tailspan_queries.console import Harmless
from tailspan_queries.optimizations_records import Account, Effect, LedgerReport, Optimization, Span, StageChange
from tailspan_queries.optimizations_words import (
    cost_text,
    evidence,
    headline,
    range_text,
    remainder,
    share_text,
    sublines,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType
    from rich.table import Table

    from tailspan_queries.optimizations_credit import Credit

SHORT_ID = 8
"""Digits of an id that are shown; commands take as many as tell entries apart."""
RESOLVED = 0.0005
"""Parts of a whole below which a remainder is none."""


def render_ledger(report: LedgerReport) -> RenderableType:
    """Return all accounts, the shared credit and the warnings."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for account in report.accounts:
        parts += [Text()] * bool(parts) + [account_table(account, report)]
    if report.credit:
        parts += [Text(), credit_table(report, report.credit)]
    return Group(*parts, *(Text(f"! {line}", style="bold red") for line in report.warnings))


def account_table(account: Account, report: LedgerReport) -> RenderableType:
    """Return one account: totals, effects, stages, remainder."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(headline(account), style="bold"), *map(Text, sublines(account)), Text()]
    parts += [effects_table(account, report), Text()]
    if any(row.change_ns is not None for row in account.stages):
        parts += [stages_table(account), Text()]
    parts.append(Text(remainder(account), style="bold"))
    return Group(*parts, *(Text(f"! {line}", style="yellow") for line in account.cautions))


def effects_table(account: Account, report: LedgerReport) -> Table:
    """Return a line for each effect, in the order of return."""
    measured = any(effect.measured for effect in account.effects)
    table = new_table("optimisation", "before", "after", "better", "saves a request", "of total")
    if measured:
        table.add_column("at p99", justify="right", no_wrap=True)
    if report.prices:
        table.add_column("return", justify="right", no_wrap=True)
    table.add_column("cost", overflow="fold", max_width=22)
    for effect in account.effects:
        item = effect.optimization
        name = f"{item.name}\n{item.place}" + (" (claim)" if effect.origin == "claim" else "")
        if effect.why:
            name += f"\n{'counted once: ' if effect.origin != 'nothing' and not effect.counted else ''}{effect.why}"
        cells = numbers(account, effect, report)
        table.add_row(name, *cells[:5], *(cells[5:] if measured else cells[6:]), cost_text(item.cost))
    return table


def numbers(account: Account, effect: Effect, report: LedgerReport) -> list[str]:
    """Return the numbers of an effect as its line shows them."""
    returned = [range_text(effect.worth_ns(report.prices))] if report.prices else []
    if effect.origin == "nothing":
        return [units.ABSENT] * (6 + len(returned))
    suffix = "/token" if effect.per == "token" else ""
    saves = range_text(effect.gain_ns)
    if effect.measured and effect.measured.interval_ns:
        saves += f"\n{range_text(effect.measured.interval_ns)}"
    return [
        f"{units.duration(effect.before_ns)}{suffix}",
        f"{units.duration(effect.after_ns)}{suffix}",
        units.percent(effect.improvement_ratio),
        saves,
        share_text(account, effect.gain_ns) if effect.counted else units.ABSENT,
        tail_text(account, effect),
        *returned,
    ]


def tail_text(account: Account, effect: Effect) -> str:
    """Return which part of the change of the tail an effect is."""
    if effect.measured is None:
        return units.ABSENT
    gain_ns = effect.measured.tail_gain_ns
    return f"{units.duration(gain_ns)}\n{units.percent(account.tail_share(gain_ns))}"


def stages_table(account: Account) -> Table:
    """Return a line for each stage: how it changed, and what of that the entries say."""
    table = new_table("stage", "before", "after", "saved a request", "of total", "by entries", "not by an entry")
    for row in account.stages:
        change = row.change_ns
        if change is None:
            table.add_row(row.stage, units.ABSENT, units.ABSENT, *stage_shares(account, row.listed_ns), units.ABSENT)
            continue
        table.add_row(
            row.stage,
            units.duration(row.before_ns),
            units.duration(row.after_ns),
            units.duration(change),
            units.percent(account.share(change)),
            range_text(row.listed_ns),
            units.duration(left_over(row, change)),
        )
    return table


def stage_shares(account: Account, listed_ns: Span) -> tuple[str, str, str]:
    """Return what a line without a measured change shows of it."""
    return units.ABSENT, share_text(account, listed_ns), range_text(listed_ns)


def left_over(row: StageChange, change_ns: float) -> float:
    """Return what the entries leave of a change; what is only rounding is 0."""
    rest = change_ns - row.listed_ns[0]
    return 0.0 if abs(rest) <= RESOLVED * max(abs(change_ns), abs(row.listed_ns[0])) else rest


def credit_table(report: LedgerReport, credit: Credit) -> RenderableType:
    """Return how the credit is divided among what was on together."""
    from rich.console import Group
    from rich.text import Text

    names = {effect.optimization.id: effect.optimization.name for each in report.accounts for effect in each.effects}
    table = new_table("shared credit", "saves a request", "of their gain")
    whole = sum(credit.values_ns.values())
    for id_, value in sorted(credit.values_ns.items(), key=lambda pair: -pair[1]):
        table.add_row(names.get(id_, id_), units.duration(value), units.percent(value / whole if whole else None))
    kind = "Shapley" if credit.is_complete else "average over the orders of switching on that were run"
    line = f"{kind}: {plural(len(credit.runs), 'run')}, {credit.orders:,} of {credit.all_orders:,} orders"
    if not credit.orders:
        line = f"no order of switching on was run in full ({plural(len(credit.runs), 'run')}): no credit to divide"
    lines = [Text(line, style="bold")]
    if credit.missing:
        missing = ["{" + ", ".join(sorted(names.get(id_, id_) for id_ in subset)) + "}" for subset in credit.missing]
        more = f" and {len(missing) - 6} more" if len(missing) > 6 else ""
        lines.append(Text(f"! never run: {', '.join(missing[:6])}{more}", style="yellow"))
    return Group(*([table] if credit.values_ns else []), *lines)


def render_list(entries: Sequence[Optimization]) -> Table:
    """Return the entries of the ledger, one line each."""
    table = new_table("id", "")
    table.columns[1].header, table.columns[1].justify, table.columns[1].no_wrap = "optimisation", "left", False
    table.add_column("about", overflow="fold")
    table.add_column("windows (UTC) or claim", no_wrap=True)
    table.add_column("cost", overflow="fold", max_width=24)
    for item in entries:
        name = f"{item.name} (removed)" if item.removed else item.name
        table.add_row(item.id[:SHORT_ID], name, item.place, "\n".join(evidence(item)), cost_text(item.cost))
    return table


def ledger_text(report: LedgerReport, width: int = 100) -> str:
    """Return a report as plain text."""
    from rich.console import Console

    # As `console` prints: nothing is markup, and what could steer a terminal is left out.
    out: Console = Console(
        file=io.StringIO(), width=width, highlight=False, color_system=None, markup=False, emoji=False
    )
    with out.capture() as captured:
        out.print(Harmless(render_ledger(report)))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
