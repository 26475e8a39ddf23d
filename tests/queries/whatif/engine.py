"""The made-up engine that predictions are held against, when it was recorded, and what it does when run again."""

import numpy as np

from tailspan_queries.times import Window
from tests.queries import traffic, whatif_traffic
from tests.queries.whatif_traffic import Sequence, Settings, Step

MINUTE_NS = traffic.MINUTE_NS
PLAIN = Settings()
BEGIN_NS = traffic.BEGIN_NS - 2 * 24 * 60 * MINUTE_NS
WINDOW = Window(BEGIN_NS, BEGIN_NS + 10 * MINUTE_NS)
FEW = Window(BEGIN_NS + 20 * MINUTE_NS, BEGIN_NS + 21 * MINUTE_NS)
EMPTY = Window(BEGIN_NS + 40 * MINUTE_NS, BEGIN_NS + 41 * MINUTE_NS)
Ran = tuple[list[Sequence], list[Step]]


def e2e_ms(done: list[Sequence]) -> np.ndarray:
    """Return the end-to-end times of the requests that were computed, with 0.2 ms to respond, ms."""
    return np.array([item.last_ns - item.start_ns + 200_000 for item in done if not item.aborted]) / 1e6


def real(settings: Settings) -> tuple[float, float]:
    """Return P50 and P99 of the engine run with other settings, ms."""
    p50, p99 = np.quantile(e2e_ms(whatif_traffic.run(settings, WINDOW.since_ns)[0]), [0.5, 0.99])
    return float(p50), float(p99)
