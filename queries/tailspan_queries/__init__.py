"""Reading side of tailspan: one `.sql` file a question, and the reports and commands that run them.

In: the ClickHouse that the collector fills. Out: tables, JSON, CSV, and the records of `tailspan_queries.reports`;
`LatencyOptimizer` is the ledger of optimisations from Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailspan_queries.optimizer import LatencyOptimizer

__all__ = ["LatencyOptimizer"]


def __getattr__(name: str) -> object:
    """Import on first use, so that a command loads only what it needs."""
    if name == "LatencyOptimizer":
        from tailspan_queries.optimizer import LatencyOptimizer

        return LatencyOptimizer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
