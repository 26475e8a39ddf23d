"""The records of the optimisation ledger; plain data without I/O. Times are ns, memory is bytes.

Optimization      one entry: what was done, the windows without and with it, its costs, a claim if it was imported
Measured          what the two windows say of the entry's stage
Effect            one line of a report: an entry with what it is known to have brought
Account           total before and after, its effects, and what of the change none of them explains
LedgerReport      the account of what was measured, one account for each source of claims, and shared credit
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from tailspan_queries import units
from tailspan_queries.filters import ALL, Filters
from tailspan_queries.times import Window

if TYPE_CHECKING:
    from tailspan_queries.optimizations_credit import Credit

Origin = Literal["measured", "claim", "nothing"]
Per = Literal["request", "token"]
Span = tuple[float, float]
"""From the least to the most that something can be; both equal where it is known."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Times that somebody says, ns a request or a token, and the tokens an answer where they said so."""

    before_ns: float
    after_ns: float
    per: Per = "request"
    tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """What an optimisation costs: in words, device memory, accuracy in percentage points."""

    text: str = ""
    gpu_memory_bytes: int = 0
    accuracy_points: float = 0.0


@dataclass(frozen=True, slots=True)
class Optimization:
    """One entry of the ledger."""

    id: str
    name: str
    stage: str
    layer: int | None = None
    kind: str = ""
    before: Window | None = None
    after: Window | None = None
    filters: Filters = ALL
    cost: Cost = Cost()
    claim: Claim | None = None
    source: str = ""
    recorded_by: str = ""
    recorded: datetime | None = None
    removed: bool = False

    @property
    def place(self) -> str:
        """The stage or part of the model that it is about: `queue`, `attention`, `12/attention`, `layer 12`."""
        if self.layer is None:
            return self.kind or self.stage
        return f"{self.layer}/{self.kind}" if self.kind else f"layer {self.layer}"

    @property
    def is_part(self) -> bool:
        """Whether it is about a part of the model rather than a stage."""
        return bool(self.kind) or self.layer is not None


@dataclass(frozen=True, slots=True)
class Measured:
    """What two windows say: means over all requests, ns a request."""

    before_ns: float
    after_ns: float
    interval_ns: Span | None
    """Where 95 of 100 resamplings put the gain; None with too few blocks of time, and for a part of the model."""
    e2e_before_ns: float
    e2e_after_ns: float
    tail_gain_ns: float
    """What the mean over the slowest requests (end-to-end from p99 on) gained in this stage."""
    requests_before: int
    requests_after: int


@dataclass(frozen=True, slots=True)
class Effect:
    """One line of a report."""

    optimization: Optimization
    origin: Origin
    before_ns: float = 0.0
    after_ns: float = 0.0
    per: Per = "request"
    gain_ns: Span = (0.0, 0.0)
    """What a request gained on average; a range where the tokens an answer are not known."""
    measured: Measured | None = None
    counted: bool = True
    """False if an effect before it covers the same change of the same stage, so that it must not count twice."""
    why: str = ""
    """Why nothing is known, or why it does not count."""

    @property
    def improvement_ratio(self) -> float | None:
        """Which part of its stage's time is gone; None if there was none."""
        return (self.before_ns - self.after_ns) / self.before_ns if self.before_ns else None

    def worth_ns(self, prices: Prices) -> Span:
        """Return the gain less what the costs are worth."""
        price = prices.of(self.optimization.cost)
        return self.gain_ns[0] - price, self.gain_ns[1] - price


@dataclass(frozen=True, slots=True)
class Prices:
    """What a unit of each cost is worth, ns a request; 0 = not weighed against time."""

    gpu_memory_gib_ns: float = 0.0
    accuracy_point_ns: float = 0.0

    def of(self, cost: Cost) -> float:
        """Return what a cost is worth, ns a request."""
        return cost.gpu_memory_bytes / 2**30 * self.gpu_memory_gib_ns + cost.accuracy_points * self.accuracy_point_ns

    def __bool__(self) -> bool:
        """Whether any is given."""
        return bool(self.gpu_memory_gib_ns or self.accuracy_point_ns)


@dataclass(frozen=True, slots=True)
class StageChange:
    """How a stage changed between the totals, ns a request: what the listed effects say and what is left over."""

    stage: str
    before_ns: float | None
    after_ns: float | None
    """None in an account of claims, which say nothing of a stage as a whole."""
    listed_ns: Span

    @property
    def change_ns(self) -> float | None:
        """What a request gained in this stage."""
        return None if self.before_ns is None or self.after_ns is None else self.before_ns - self.after_ns


@dataclass(frozen=True, slots=True)
class Account:
    """Total before and after, ns a request, and how much of the change the effects explain."""

    title: str
    total_origin: Origin
    total_before_ns: float
    total_after_ns: float
    effects: tuple[Effect, ...]
    stages: tuple[StageChange, ...] = ()
    tail_before_ns: float | None = None
    tail_after_ns: float | None = None
    before: Window | None = None
    after: Window | None = None
    tokens: Span | None = None
    """Tokens an answer that fit into the totals, where claims by token leave them open."""
    tokens_needed: float | None = None
    """Tokens an answer with which the effects would explain the whole change."""
    cautions: tuple[str, ...] = ()

    @property
    def change_ns(self) -> float:
        """What a request gained end to end."""
        return self.total_before_ns - self.total_after_ns

    @property
    def tail_change_ns(self) -> float | None:
        """What the slowest requests gained."""
        if self.tail_before_ns is None or self.tail_after_ns is None:
            return None
        return self.tail_before_ns - self.tail_after_ns

    @property
    def improvement_ratio(self) -> float:
        """Which part of the total is gone."""
        return units.part(self.change_ns, self.total_before_ns)

    @property
    def listed_ns(self) -> Span:
        """What the effects that count add up to."""
        counted = [effect.gain_ns for effect in self.effects if effect.counted]
        return sum(low for low, _ in counted), sum(high for _, high in counted)

    @property
    def unexplained_ns(self) -> Span:
        """What the effects leave over; negative where they claim more than there was."""
        low, high = self.listed_ns
        return self.change_ns - high, self.change_ns - low

    def share(self, gain_ns: float) -> float | None:
        """Return which part of the change a gain is; None if nothing changed."""
        return gain_ns / self.change_ns if self.change_ns else None

    def tail_share(self, gain_ns: float) -> float | None:
        """Return which part of the change of the tail a gain is; None if nothing changed or it is not known."""
        return gain_ns / self.tail_change_ns if self.tail_change_ns else None


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """All accounts; an empty ledger has none."""

    accounts: tuple[Account, ...]
    prices: Prices = Prices()
    credit: Credit | None = None
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The report as plain text, 100 columns wide."""
        from tailspan_queries.optimizations_view import ledger_text

        return ledger_text(self)
