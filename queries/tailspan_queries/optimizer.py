"""The optimisation ledger from Python: `LatencyOptimizer`.

    optimizer = LatencyOptimizer()
    optimizer.record_optimization("queue", 1800, 420, cost="more complex")          # numbers of yours: claims
    optimizer.record_optimization("decode", 35, 22, per="token", tokens=12)
    print(optimizer.generate_report(2850, 950))

    optimizer = LatencyOptimizer(connect("http://127.0.0.1:8123"))                  # or times that are measured
    optimizer.record_optimization("queue", before=Window(a, b), after=Window(c, d), cost="more complex")
    print(optimizer.generate_report())

    LatencyOptimizer.from_claims("tuning-story")                                    # a published story, or your file

Nothing is stored: `tailspan optimizations add` keeps entries in ClickHouse. Units: milliseconds in, as named; the
report's records are in nanoseconds. Errors: `tailspan.errors.UserError`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tailspan.errors import UserError
from tailspan_queries.client import Client
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.optimizations import Samples, measure, measured_account, widest
from tailspan_queries.optimizations_account import END_TO_END, by_return, claimed, claims_account
from tailspan_queries.optimizations_import import entry_id, read_claims
from tailspan_queries.optimizations_records import (
    Claim,
    Cost,
    Effect,
    LedgerReport,
    Optimization,
    Per,
    Prices,
)
from tailspan_queries.records import STAGE_ORDER
from tailspan_queries.times import Window

NOT_MEASURED = "before and after as times, or as windows with a client"


class LatencyOptimizer:
    """Collects optimisations and reports what each is of the whole change."""

    def __init__(self, client: Client | None = None, filters: Filters = ALL) -> None:
        """`client` and `filters` are for what is measured: which ClickHouse, which requests."""
        self._client = client
        self._filters = filters
        self._entries: list[Optimization] = []
        self._total: Claim | None = None

    @classmethod
    def from_claims(cls, name: str) -> LatencyOptimizer:
        """Return one with the claims of a JSON or CSV file, or of a shipped story such as `tuning-story`.

        Raises: UserError if it does not read.
        """
        optimizer = cls()
        for item in read_claims(name):
            if item.stage == END_TO_END:
                optimizer._total = item.claim
            else:
                optimizer._entries.append(item)
        return optimizer

    @property
    def optimizations(self) -> Sequence[Optimization]:
        """What was recorded, in order."""
        return tuple(self._entries)

    def record_optimization(
        self,
        layer: str,
        before_ms: float | None = None,
        after_ms: float | None = None,
        cost: str = "",
        *,
        name: str = "",
        before: Window | None = None,
        after: Window | None = None,
        per: Per = "request",
        tokens: float | None = None,
        cost_gpu_memory_bytes: int = 0,
        cost_accuracy_points: float = 0.0,
    ) -> Optimization:
        """Record what was done to a layer of the serving stack: a stage, or a part of the model (`12/attention`).

        Either times in milliseconds, which the report shows as claims, `per` request or token of the answer (with
        `tokens` an answer where they are known), or two windows, which are measured.
        Raises: UserError if it is neither of both, or not a time.
        """
        place = layer.strip().lower()
        costs = Cost(cost, cost_gpu_memory_bytes, cost_accuracy_points)
        id_ = entry_id(str(len(self._entries)), place, name)
        stage, number, kind = parse_place(place)
        item = Optimization(id_, name or layer.strip(), stage, number, kind, filters=self._filters, cost=costs)
        if before is not None and after is not None and before_ms is None and after_ms is None:
            if self._client is None:
                raise UserError("windows can only be measured with a client", "LatencyOptimizer(connect(url))")
            item = replace(item, before=before, after=after)
        elif before is None and after is None and before_ms is not None and after_ms is not None:
            sides = checked_ms("before_ms", before_ms) * 1e6, checked_ms("after_ms", after_ms) * 1e6
            known = None if tokens is None else checked_ms("tokens", tokens)
            item = replace(item, stage=stage or place, claim=Claim(*sides, per, known if per == "token" else None))
        else:
            raise UserError(f"{layer}: it is not clear what to compare", f"Give {NOT_MEASURED}")
        self._entries.append(item)
        return item

    def generate_report(
        self,
        total_before_ms: float | None = None,
        total_after_ms: float | None = None,
        *,
        total_before: Window | None = None,
        total_after: Window | None = None,
        prices: Prices = Prices(),  # noqa: B008 (a frozen value)
    ) -> LedgerReport:
        """Return the report; `str` of it is a table.

        The total is the times given, which are claims, or else the windows given, by default the earliest and the
        latest of what was measured.
        Raises: UserError as the client says, and for half a total.
        """
        samples = Samples(self._client) if self._client else None
        effects = [self._effect(item, samples) for item in self._entries]
        total = self._total
        if (total_before_ms is None) != (total_after_ms is None) or (total_before is None) != (total_after is None):
            raise UserError("half a total", "Give the total before and after")
        if total_before_ms is not None and total_after_ms is not None:
            before_ns, after_ns = (checked_ms("the total", value) * 1e6 for value in (total_before_ms, total_after_ms))
            total = Claim(before_ns, after_ns)
        windowed = [item for item in self._entries if item.before]
        if total is None and samples and (windowed or total_before):
            totals = (total_before, total_after) if total_before and total_after else widest(windowed)
            return LedgerReport((measured_account(samples, effects, totals, self._filters, prices),), prices)
        account = claims_account("claimed", (total.before_ns, total.after_ns) if total else None, effects)
        return LedgerReport((replace(account, effects=by_return(account.effects, prices)),), prices)

    def _effect(self, item: Optimization, samples: Samples | None) -> Effect:
        if item.claim:
            return claimed(item, item.claim)
        return measure(samples.client, samples, item) if samples else Effect(item, "nothing", why="no client")


def parse_place(place: str) -> tuple[str, int | None, str]:
    """Return stage, layer and kind: `queue`, `12/attention`, `layer 12` or `attention`."""
    if place in STAGE_ORDER or place == END_TO_END:
        return place, None, ""
    number, _, kind = place.removeprefix("layer ").partition("/")
    if number.isdecimal():
        return "", int(number), kind
    return "", None, place


def checked_ms(name: str, value: float) -> float:
    """Return a number that is not negative.

    Raises: UserError if it is none.
    """
    if not math.isfinite(value) or value < 0:
        raise UserError(f"{name} is {value!r}", "Give a number from 0 on, times in milliseconds")
    return float(value)
