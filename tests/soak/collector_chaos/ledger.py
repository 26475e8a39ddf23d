"""Compares what the clients were told with what ClickHouse holds, span by span.

Table = acknowledged + some of those whose export failed at the client (their request may have arrived all the same),
each once; and the rollups are what the table says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Rows = Callable[[str], list[list[str]]]
"""Runs a query and returns its rows, all values as text."""

ROWS = """
    select reinterpretAsUInt64(reverse(span_id)), xxHash64(concat(
        trace_id, span_id, parent_span_id, reinterpretAsFixedString(toUnixTimestamp64Nano(start)),
        reinterpretAsFixedString(duration_ns), name))
    from tailspan.spans where service = '{service}'
"""


@dataclass(frozen=True, slots=True)
class Account:
    """What became of one client's spans."""

    made: int
    acknowledged: int
    failed: int
    failed_exports: int
    failed_but_stored: int
    stored: int


def settle(rows: Rows, service: str, report: dict[str, Any]) -> Account:
    """Check one client's spans in the table against its report."""
    found = [(int(span_id), int(content)) for span_id, content in rows(ROWS.format(service=service))]
    failed: dict[int, int] = dict(report["failed"])
    stored = dict(found)
    assert len(stored) == len(found), f"{service}: {len(found) - len(stored)} spans are there twice"
    acknowledged = {span_id: content for span_id, content in found if span_id not in failed}
    missing = report["acknowledged"] - len(acknowledged)
    assert not missing, f"{service}: {missing} of {report['acknowledged']} acknowledged spans are missing"
    assert sum(acknowledged) % 2**64 == report["ids"], f"{service}: the checksum of the ids differs"
    if report["content"] is not None:
        content = sum(acknowledged.values()) % 2**64
        assert content == report["content"], f"{service}: the checksum of the content differs"
        wrong = [span_id for span_id, content in failed.items() if stored.get(span_id, content) != content]
        assert not wrong, f"{service}: {len(wrong)} spans are not what was sent"
    return Account(
        made=report["made"],
        acknowledged=report["acknowledged"],
        failed=len(failed),
        failed_exports=report["failed_exports"],
        failed_but_stored=len(stored.keys() & failed.keys()),
        stored=len(stored),
    )


DIFFERENCES = {
    "traces": """
        select count() from (
            select trace_id, count() as n, countIf(role = 'request') as r, min(start) as s
            from tailspan.spans group by trace_id
        ) as a full join (
            select trace_id, sum(span_count) as n, sum(request_count) as r, min(start) as s
            from tailspan.traces group by trace_id
        ) as b using trace_id
        where a.n != b.n or a.r != b.r or a.s != b.s
    """,
    "stage_minutes": """
        select count() from (
            select toStartOfMinute(start) as minute, service, stage, count() as n, sum(wall) as w from (
                select start, service, if(role = 'request', 'request', toString(stage)) as stage, duration_ns as wall
                from tailspan.spans where role in ('request', 'stage')
                union all
                select start, service, 'unattributed', unattributed_ns from tailspan.spans where role = 'request'
            ) group by minute, service, stage
        ) as a full join (
            select minute, service, toString(stage) as stage, sum(span_count) as n, sum(wall_sum_ns) as w
            from tailspan.stage_minutes group by minute, service, stage
        ) as b using (minute, service, stage)
        where a.n != b.n or abs(a.w - b.w) > 1e-6 * a.w
    """,
    "stage_hours": """
        select count() from (
            select toStartOfHour(minute) as hour, service, stage, sum(span_count) as n, sum(wall_sum_ns) as w
            from tailspan.stage_minutes group by hour, service, stage
        ) as a full join (
            select hour, service, stage, sum(span_count) as n, sum(wall_sum_ns) as w
            from tailspan.stage_hours group by hour, service, stage
        ) as b using (hour, service, stage)
        where a.n != b.n or abs(a.w - b.w) > 1e-6 * a.w
    """,
    "spans_sample": """
        select count() from (
            select trace_id, count() as n, sum(duration_ns) as w
            from tailspan.spans where role in ('request', 'stage') and sipHash64(trace_id) % 4096 < 256
            group by trace_id
        ) as a full join (
            select trace_id, count() as n, sum(duration_ns) as w from tailspan.spans_sample group by trace_id
        ) as b using trace_id
        where a.n != b.n or a.w != b.w
    """,
}


def check_rollups(rows: Rows) -> None:
    """Check that the trace index and the rollup by minute are what the table says."""
    for name, sql in DIFFERENCES.items():
        differing = int(rows(sql)[0][0])
        assert not differing, f"{name}: {differing} groups differ from the table"
