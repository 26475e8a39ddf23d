"""Which requests and steps keep their spans, and how many of their class each kept one stands for.

In: the ledger of a finished request, or a step. Out: its weight, 1 / the probability with which its class is kept, or 0
when its spans are dropped. Histograms see every request; this decides about spans only.

The head sampler decides first, the rules of TAILSPAN_KEEP among what it lets pass, and the weights multiply. A request
belongs to a rule's class by what happened to it, never by a coin, so sums over weights are unbiased: a rule that always
keeps has weight 1, the rest is kept by a coin of probability p and weighs 1/p.

Both coins are functions of the trace id, so services that share a trace agree. The head's is that of the OpenTelemetry
SDK (the low 64 bits as they are); the rule's mixes the bits first, which makes the two independent.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from zlib import crc32

from opentelemetry.trace import TraceFlags

from tailspan import attributes as attr
from tailspan.agent.decode import Step
from tailspan.agent.ledger import Ledger
from tailspan.agent.settings import Head, Keep

WINDOW_REQUESTS = 1000
"""Recent requests of one model among which the slowest are found."""
MIN_WINDOW = 20
"""Requests of a model before the rule `slowest` can tell."""
MAX_MODELS = 64
"""Models with a window; the one that was idle longest makes room."""

_ERRORS = ("error", "lost")
_ABORTS = ("client_disconnect", "cancelled")
_MASK = (1 << 64) - 1


class Sampler:
    """The decision for one worker; used by one thread."""

    def __init__(self, head: Head, keep: Keep | None) -> None:
        """Without `keep` everything that the head sampler lets pass is kept."""
        self.head = head
        self.keep = keep
        self._windows: OrderedDict[str, _Window] = OrderedDict()

    def request(self, account: Ledger) -> float:
        """Return the weight of a request's spans, 0 to drop them."""
        weight, keep = self._head_weight(account), self.keep
        if keep is not None:
            # The window sees every request, whatever the head sampler says.
            slow = keep.slowest > 0 and self._window(account.model).is_among_slowest(account.e2e_ns, keep.slowest)
            weight *= 1.0 if slow or _by_rule(keep, account) else _coin(keep.ratio, mix(_low(account)))
        return weight

    def step(self, step: Step, *, has_layers: bool = False) -> float:
        """Return the weight of a step's span, 0 to drop it: the head's ratio times that of the rules.

        Steps with the times of their layers are few, and the worker chose them: a class of their own, of which all are
        kept unless the ratio is 0.
        """
        ratio = self.head.ratio * (self.keep.ratio if self.keep is not None else 1.0)
        if ratio == 1 or (has_layers and ratio > 0):
            return 1.0
        return _coin(ratio, mix(step.number ^ crc32(step.engine.encode()) << 32))

    def _head_weight(self, account: Ledger) -> float:
        request = account.request
        if self.head.parent_based and request.parent_id:
            return 1.0 if request.flags & TraceFlags.SAMPLED else 0.0
        return _coin(self.head.ratio, _low(account))

    def _window(self, model: str) -> _Window:
        window = self._windows.get(model)
        if window is None:
            if len(self._windows) >= MAX_MODELS:
                self._windows.popitem(last=False)
            window = self._windows[model] = _Window()
        self._windows.move_to_end(model)
        return window


class _Window:
    """The durations of the most recent requests, in order of arrival and of size."""

    __slots__ = ("_recent", "_sorted")

    def __init__(self) -> None:
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []

    def is_among_slowest(self, e2e_ns: int, share: float) -> bool:
        """Whether fewer than `share` of the earlier requests took as long; then remember this one."""
        count = len(self._sorted)
        as_slow = count - bisect_left(self._sorted, e2e_ns)
        if count >= WINDOW_REQUESTS:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(e2e_ns)
        insort(self._sorted, e2e_ns)
        return count >= MIN_WINDOW and as_slow < share * count


def mix(bits: int) -> int:
    """Return 64 well-mixed bits of 64 (the finalizer of SplitMix64)."""
    bits = (bits + 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ bits >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ bits >> 27) * 0x94D049BB133111EB) & _MASK
    return bits ^ bits >> 31


def _low(account: Ledger) -> int:
    return account.request.trace_id & _MASK


def _by_rule(keep: Keep, account: Ledger) -> bool:
    request = account.request
    return (
        (keep.errors and request.outcome in _ERRORS)
        or (keep.aborts and request.outcome in _ABORTS)
        or (keep.header and bool(request.attributes.get(attr.DEBUG)))
    )


def _coin(ratio: float, bits: int) -> float:
    """Return 1/ratio for the share `ratio` of all 64-bit patterns, else 0."""
    return 1.0 / ratio if bits < round(ratio * (_MASK + 1)) else 0.0
