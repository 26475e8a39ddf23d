"""Decides which steps are sampled, so that sampling never costs more than its budget; pure, without torch or a clock.

Each phase (prefill, decode) has an account of its own: every step pays in a fraction of its wall time, a sample takes
out what it did cost. A sample is taken when the account holds what one is expected to cost, times a random factor from
1 to 2, so that sampling does not lock to a period of the load, and never more often than once in an interval of step
time, which is random likewise. A cost above what was expected is a debt that is paid first. The account is capped at
two samples, so that time without samples allows no burst.

So over any stretch of steps of a phase: cost <= budget x wall time + two expected samples + what one cost more.
Units: ns.
"""

from __future__ import annotations

from collections import deque
from random import Random
from statistics import median
from typing import Final

BUDGET: Final = 0.005
FIRST_COST_NS: Final = 2_000_000
"""What a sample is expected to cost before there was one; more than it does."""
INTERVAL_NS: Final = 100_000_000
"""Least step time between two samples of a phase."""
_RECENT = 15
_FALL = 0.25
"""Weight of a sample that cost less than expected; one that cost more is believed at once."""


class _Account:
    """One phase: its credit and the steps since its last sample."""

    __slots__ = (
        "cost_ns",
        "credit_ns",
        "expected_ns",
        "recent",
        "sampled",
        "since_ns",
        "steps",
        "wait_ns",
        "wanted_ns",
    )

    def __init__(self) -> None:
        self.credit_ns = 0.0
        self.expected_ns: float = FIRST_COST_NS
        self.cost_ns = 0.0
        self.wanted_ns = 0.0
        self.since_ns = 0.0
        self.wait_ns = 0.0
        self.steps = 0
        self.sampled = False
        self.recent: deque[int] = deque(maxlen=_RECENT)


class Governor:
    """The budget of one sampler; used by one thread."""

    def __init__(
        self,
        budget: float = BUDGET,
        *,
        slows_step: bool = False,
        first_cost_ns: float = FIRST_COST_NS,
        interval_ns: float = INTERVAL_NS,
        random: Random | None = None,
    ) -> None:
        """`budget`: fraction of step time, 0 for no samples.

        `slows_step`: a sampled step runs in another, slower way (not compiled, without CUDA graph), so that its wall
        time above the median of the last steps of its phase is cost as well.
        """
        self._budget = budget
        self._slows_step = slows_step
        self._first_cost_ns = first_cost_ns
        self._interval_ns = interval_ns
        self._random = random or Random()  # noqa: S311 (no secret)
        self._accounts: dict[str, _Account] = {}

    def wants(self, phase: str) -> bool:
        """Whether a step of this phase should be sampled now."""
        if self._budget <= 0:
            return False
        account = self._account(phase)
        return account.credit_ns >= account.wanted_ns and account.since_ns >= account.wait_ns

    def sampled(self, phase: str, cost_ns: float, *, kept: bool = True) -> int:
        """The current step was sampled at this cost so far; return how many steps the sample stands for, itself
        included.

        `kept=False`: nothing came of it, so the step counts as one without a sample.
        """
        account = self._account(phase)
        self._believe(account)
        account.cost_ns = 0.0
        account.since_ns = 0.0
        account.sampled = kept
        self.charge(phase, cost_ns)
        account.wait_ns = self._interval_ns * self._factor()
        if not kept:
            return 0
        steps, account.steps = account.steps + 1, 0
        return steps

    def charge(self, phase: str, cost_ns: float) -> None:
        """Count what the last sample of a phase cost beyond what is known of it."""
        account = self._account(phase)
        account.cost_ns += cost_ns
        account.credit_ns -= cost_ns
        account.wanted_ns = max(account.expected_ns, account.cost_ns) * self._factor()

    def stepped(self, phase: str, wall_ns: int) -> None:
        """Count a step that ended, sampled or not."""
        account = self._account(phase)
        if account.sampled:
            account.sampled = False
            if self._slows_step and len(account.recent) > 2:
                self.charge(phase, max(0.0, wall_ns - median(account.recent)))
        else:
            account.steps += 1
            account.recent.append(wall_ns)
        cap = 2 * max(account.expected_ns, account.cost_ns)
        account.credit_ns = min(account.credit_ns + self._budget * wall_ns, cap)
        for other in self._accounts.values():
            other.since_ns += wall_ns

    def _believe(self, account: _Account) -> None:
        """The last sample's cost is known by now: expect the like."""
        cost = account.cost_ns
        if cost > 0:
            weight = 1 if cost > account.expected_ns else _FALL
            account.expected_ns += weight * (cost - account.expected_ns)

    def _account(self, phase: str) -> _Account:
        account = self._accounts.get(phase)
        if account is None:
            account = self._accounts[phase] = _Account()
            account.expected_ns = self._first_cost_ns
            account.wanted_ns = account.expected_ns * self._factor()
            account.wait_ns = self._interval_ns * self._factor()
        return account

    def _factor(self) -> float:
        return 1 + self._random.random()
