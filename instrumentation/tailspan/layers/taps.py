"""Puts marks around the calls of a plan, for the length of a step, and takes them away again.

A tap replaces a method on the object itself (`module.__dict__["forward"]`), which costs a fraction of a registered
hook and leaves what other tools put there as it was. Within the step it is straight-through for other threads, while
torch compiles, and while a CUDA graph is captured unless the capture is the purpose. An exception of the model passes
unchanged, and the marks stay in pairs.

Some layers are followed by a call that does nothing, timed like the others: what marks cost at that place and moment.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any, NamedTuple

from tailspan.layers.partition import LEFT, PART
from tailspan.layers.plan import Plan, Site

CALIBRATIONS = 8
"""Calls that do nothing in a pass of a model, about."""
_ABSENT: Any = object()
Function = Callable[..., Any]


class _Tap(NamedTuple):
    """One replaced method: where it is kept, what was there, and what replaces it."""

    attributes: dict[str, Any]
    method: str
    before: Any
    wrapper: Function


class Taps:
    """All taps of a plan for one source of marks.

    While they are in, `marks` and `codes` grow as `partition` reads them, and `empty_ns` by the host time of each call
    that does nothing.
    """

    def __init__(self, plan: Plan, record: Callable[[], Any], *, capturing: bool = False) -> None:
        """`record` returns a mark, or None. `capturing`: they are used while a CUDA graph is captured."""
        self.marks: list[Any] = []
        self.codes: list[int] = [plan.other]
        self.empty_ns: list[int] = []
        self.record = record
        self.thread = 0
        """Identity of the thread whose calls are timed."""
        self._plan = plan
        self._capturing = capturing
        self._is_compiling, self._is_capturing = _torch_state()
        self._timed = _factory(self, self._is_compiling)
        self._nothing = self._timed(_nothing, len(plan.parts))
        self._taps: list[_Tap] = []
        self._methods: list[tuple[type, str, Any]] = []
        self._renew()

    def install(self) -> None:
        """Put the taps in; only this thread's calls are timed. Begins with no marks."""
        self.marks.clear()
        self.empty_ns.clear()
        del self.codes[1:]
        if any(getattr(owner, method) is not function for owner, method, function in self._methods) or any(
            attributes.get(method, _ABSENT) is not before for attributes, method, before, _ in self._taps
        ):
            self._renew()
        for attributes, method, _, wrapper in self._taps:
            attributes[method] = wrapper
        self.thread = get_ident()

    def remove(self) -> None:
        """Take the taps out and put back, by identity, what was there; what others put over a tap stays."""
        self.thread = 0
        for attributes, method, before, wrapper in self._taps:
            if attributes.get(method) is wrapper:
                if before is _ABSENT:
                    del attributes[method]
                else:
                    attributes[method] = before

    def _renew(self) -> None:
        """Make the taps for the methods that the model has now."""
        sites = self._plan.sites
        stride = -(-sum(site.is_layer for site in sites) // CALIBRATIONS)
        self._taps.clear()
        layers = 0
        for site in sites:
            self._taps.append(self._tap(site, calibrates=site.is_layer and layers % stride == 0))
            layers += site.is_layer
        methods = {(type(site.owner), site.method) for site in sites}
        self._methods = [(owner, method, getattr(owner, method)) for owner, method in methods]

    def _tap(self, site: Site, calibrates: bool) -> _Tap:
        attributes = vars(site.owner)
        original = getattr(site.owner, site.method)
        wrapper = self._timed(original, site.part)
        if calibrates:
            wrapper = self._followed_by_nothing(wrapper)
        if site.owner is self._plan.model and not self._capturing:
            wrapper = self._unless_captured(wrapper, original)
        return _Tap(attributes, site.method, attributes.get(site.method, _ABSENT), wrapper)

    def _followed_by_nothing(self, wrapper: Function) -> Function:
        nothing, add, is_compiling = self._nothing, self.empty_ns.append, self._is_compiling

        def forward(*args: Any, **kwargs: Any) -> Any:
            result = wrapper(*args, **kwargs)
            if not is_compiling() and self.thread == get_ident():
                begin_ns = perf_counter_ns()
                nothing()
                add(perf_counter_ns() - begin_ns)
            return result

        return forward

    def _unless_captured(self, wrapper: Function, original: Function) -> Function:
        is_compiling, is_capturing = self._is_compiling, self._is_capturing

        def forward(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            if self.thread == get_ident() and is_capturing():
                self.thread = 0  # events of the pool must not become part of a graph
                self.marks.append(None)
            return wrapper(*args, **kwargs)

        return forward


def _factory(taps: Taps, is_compiling: Callable[[], bool]) -> Callable[[Function, int], Function]:
    """Return what makes a timed function of a function and a part; all share what they need, in few cache lines."""
    record, codes, add_mark, add_code = taps.record, taps.codes, taps.marks.append, taps.codes.append

    def timed(original: Function, part: int) -> Function:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or taps.thread != get_ident():
                return original(*args, **kwargs)
            outside = codes[-1] & PART | LEFT
            add_code(part)
            add_mark(record())
            try:
                return original(*args, **kwargs)
            finally:
                add_mark(record())
                add_code(outside)

        return forward

    return timed


def _nothing() -> None:
    pass


def _torch_state() -> tuple[Callable[[], bool], Callable[[], bool]]:
    """Return two questions: does torch compile, is a CUDA graph being captured?"""
    import torch

    def is_capturing() -> bool:
        return torch.cuda.is_initialized() and bool(torch.cuda.is_current_stream_capturing())

    return torch.compiler.is_compiling, is_capturing
