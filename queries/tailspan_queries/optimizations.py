"""The report of the optimisation ledger: what each change brought, at what price, and what no entry explains.

In: a client and the entries. Out: `LedgerReport`: an account of what was measured, one for each source of claims.
What an entry brought is the difference of the means of its own stage in its two windows: times are never typed in.
`contribution` is that gain as a share of the change of the whole request between the totals, by default the earliest
window without and the latest window with an entry. What other stages gained or lost in the same time is no entry's, and
stands under each stage and in the remainder.
Units: ns a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tailspan import attributes
from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.optimizations_account import (
    END_TO_END,
    by_return,
    claimed,
    claims_account,
    count_once,
    fitting_tokens,
    listed,
    needed_tokens,
    with_gain,
)
from tailspan_queries.optimizations_cautions import cautions
from tailspan_queries.optimizations_credit import MOST, Credit, Run, divide
from tailspan_queries.optimizations_measure import Sample, measured_part, measured_stage, sample
from tailspan_queries.optimizations_records import Account, Effect, LedgerReport, Optimization, Prices, StageChange
from tailspan_queries.times import Window

Totals = tuple[Window, Window]
Sampler = Callable[[Window, Filters], Sample]


@dataclass(slots=True)
class Samples:
    """Reads each window once."""

    client: Client
    _read: dict[tuple[Window, Filters], Sample] = field(default_factory=dict)

    def __call__(self, window: Window, filters: Filters) -> Sample:
        """Return the sums of a window."""
        key = (window, filters)
        if key not in self._read:
            self._read[key] = sample(self.client, window, filters)
        return self._read[key]


def ledger_report(
    client: Client,
    entries: Sequence[Optimization],
    *,
    totals: Totals | None = None,
    filters: Filters = ALL,
    prices: Prices = Prices(),  # noqa: B008 (a frozen value)
    runs: Sequence[Run] = (),
) -> LedgerReport:
    """Measure the entries and return the report.

    Raises: UserError as `client` says, and for more optimisations in `runs` than can be divided among.
    """
    samples = Samples(client)
    windowed = [item for item in entries if item.before and item.after]
    effects = [measure(client, samples, item) for item in windowed]
    accounts = []
    if windowed:
        accounts.append(measured_account(samples, effects, totals or widest(windowed), filters, prices))
    claims = [item for item in entries if item.claim]
    accounts += [
        source_account(source, [item for item in claims if item.source == source], prices)
        for source in dict.fromkeys(item.source for item in claims)
    ]
    return LedgerReport(tuple(accounts), prices, credit(samples, windowed, runs, filters))


def measure(client: Client, samples: Sampler, item: Optimization) -> Effect:
    """Return what the windows of an entry say it brought."""
    if item.before is None or item.after is None:
        return Effect(item, "nothing", why="no windows")
    before, after = samples(item.before, item.filters), samples(item.after, item.filters)
    empty = [name for name, found in (("before", before), ("after", after)) if not found.kept]
    if empty:
        return Effect(item, "nothing", why=f"no requests in the window {' and '.join(empty)}")
    found = measured_part(client, item, before, after) if item.is_part else measured_stage(before, after, item.stage)
    if found is None:
        return Effect(item, "nothing", why="no step of both windows was timed by part")
    gain = found.before_ns - found.after_ns
    why = "" if found.before_ns or found.after_ns else "no request of either window has this stage"
    return Effect(item, "measured", found.before_ns, found.after_ns, "request", (gain, gain), found, why=why)


def widest(items: Sequence[Optimization]) -> Totals:
    """Return the earliest window without and the latest window with one of the entries."""
    before = min((item.before for item in items if item.before), key=lambda window: window.since_ns)
    after = max((item.after for item in items if item.after), key=lambda window: window.until_ns)
    return before, after


def measured_account(
    samples: Sampler, effects: Sequence[Effect], totals: Totals, filters: Filters, prices: Prices
) -> Account:
    """Return the account of what was measured."""
    first, last = samples(totals[0], filters), samples(totals[1], filters)
    known = bool(first.kept and last.kept)
    sides = (first.mean_ns(END_TO_END), last.mean_ns(END_TO_END)) if known else None
    tokens = fitting_tokens(sides, effects)
    counted = count_once([with_gain(effect, tokens) for effect in effects])
    tails = (first.tail_ns.get(END_TO_END), last.tail_ns.get(END_TO_END)) if known else (None, None)
    return Account(
        "measured",
        "measured" if known else "nothing",
        *(sides or (0.0, 0.0)),
        by_return(counted, prices),
        stage_changes(first, last, counted) if known else (),
        *tails,
        *totals,
        tokens=tokens,
        tokens_needed=needed_tokens(sides, effects),
        cautions=tuple(cautions(counted, first, last, filters)),
    )


def stage_changes(first: Sample, last: Sample, effects: Sequence[Effect]) -> tuple[StageChange, ...]:
    """Return how each stage changed between the totals; parts of the model follow, as they lie within stages."""
    order = (*attributes.STAGES, attributes.UNATTRIBUTED)
    stages = {*first.stages, *last.stages}
    found = [
        StageChange(stage, first.mean_ns(stage), last.mean_ns(stage), listed(effects, stage))
        for stage in sorted(stages, key=lambda stage: (order.index(stage) if stage in order else len(order), stage))
    ]
    parts = dict.fromkeys(effect.optimization.place for effect in effects if effect.optimization.is_part)
    return (*found, *(StageChange(part, None, None, listed(effects, part)) for part in parts))


def source_account(source: str, items: Sequence[Optimization], prices: Prices) -> Account:
    """Return the account of the claims of one source."""
    total = next((item.claim for item in items if item.stage == END_TO_END and item.claim), None)
    effects = [claimed(item, item.claim) for item in items if item.claim and item.stage != END_TO_END]
    sides = (total.before_ns, total.after_ns) if total else None
    account = claims_account(f"claimed by {source or 'hand'}", sides, effects)
    return replace(account, effects=by_return(account.effects, prices))


def credit(samples: Sampler, items: Sequence[Optimization], runs: Sequence[Run], filters: Filters) -> Credit | None:
    """Return the shared credit over runs, or else over the windows of the ledger; None if there is nothing to share."""
    explicit = bool(runs)
    chosen = list(runs) if explicit else windows_as_runs(items)
    players = list(dict.fromkeys(item.id for item in items if not explicit or any(item.id in run.on for run in runs)))
    if not chosen or len(players) < (1 if explicit else 2) or (not explicit and len(players) > MOST):
        return None
    read = []
    for run in chosen:
        found = samples(run.window, filters)
        read.append(replace(run, mean_ns=found.mean_ns(END_TO_END), requests=float(found.requests.sum())))
    return divide(players, read)


def windows_as_runs(items: Sequence[Optimization]) -> list[Run]:
    """Return the windows of the ledger as runs, taking it that what was switched on stayed on.

    A window in which something was switched on is none.
    """
    windows = sorted(
        {window for item in items for window in (item.before, item.after) if window}, key=lambda window: window.since_ns
    )
    begins = {item.id: item.after.since_ns for item in items if item.after}
    return [
        Run(window, frozenset(id_ for id_, begin in begins.items() if begin <= window.since_ns))
        for window in windows
        if not any(window.since_ns < begin < window.until_ns for begin in begins.values())
    ]
