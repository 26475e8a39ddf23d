"""Compares a fuzz run with what the collector stored, kept as rejects and says about itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.conformance.running import OtlpCollector
from tests.conformance.signals import SIGNALS
from tests.soak.collector_fuzz.judge import Verdict
from tests.soak.collector_fuzz.run import Tally
from tests.support.collector import wait_until

ITEMS = {
    "traces": "select count() from tailspan.spans where service != 'neighbour'",
    "logs": "select count() from tailspan.otel_logs where ServiceName != 'neighbour'",
}


@dataclass(frozen=True, slots=True)
class Found:
    """What is in ClickHouse."""

    rejects: int
    lenient: int
    """Acknowledged requests that the judge cannot decode and ClickHouse could."""


def settle(collector: OtlpCollector, tally: Tally, timeout: float) -> Found:
    """Wait until the spool is empty, then check every request.

    Raises:
        AssertionError: a neighbour is missing or doubled, or a mutant is not where it must be.
    """
    left = wait_until(lambda: collector.metric("unread_bytes"), lambda size: size == 0, timeout)
    assert left == 0, f"{left:,.0f} bytes are not stored after {timeout:g} s"
    _check_neighbours(collector, tally)
    rejects = collector.query("select xxHash64(payload), count(), any(reason) from tailspan.rejects group by payload")
    doubled = [row for row in rejects if row[1] != 1]
    assert not doubled, f"kept as rejects more than once: {doubled[:3]}"
    kept = {digest: reason for digest, _, reason in rejects}
    unknown = kept.keys() - tally.verdicts.keys()
    assert not unknown, f"{len(unknown)} rejects were never acknowledged, or are valid requests: {kept[unknown.pop()]}"
    wrong = Counter(tally.verdicts[digest][1] for digest in kept if tally.verdicts[digest][0] is Verdict.VALID)
    assert not wrong, f"valid requests are kept as rejects: {wrong}"
    for name, sql in ITEMS.items():
        stored = int(collector.query(sql)[0][0])
        least = tally.valid_items[name]
        assert least <= stored <= least + tally.unclear_items[name], f"{name}: {stored} items, {least} are valid"
    invalid = {digest: mutation for digest, (verdict, mutation) in tally.verdicts.items() if verdict is Verdict.INVALID}
    lenient = Counter(mutation for digest, mutation in invalid.items() if digest not in kept)
    # Its decoder lets field number 0 and the like pass; where a batch has such a request alone, it is stored.
    assert lenient.total() <= 0.02 * len(invalid), f"requests that are no protobuf were stored: {lenient}"
    return Found(len(kept), lenient.total())


def _check_neighbours(collector: OtlpCollector, tally: Tally) -> None:
    for signal in SIGNALS:
        stored = int(collector.query(signal.count_sql, service="neighbour")[0][0])
        assert stored == tally.neighbours[signal.name], f"{signal}: {stored} are stored"
    ids = "uniqExact(span_id), sum(reinterpretAsUInt64(reverse(span_id)))"
    found = collector.query(f"select {ids} from tailspan.spans where service = 'neighbour'")
    assert found == [(tally.neighbours["traces"], tally.neighbour_ids)]
