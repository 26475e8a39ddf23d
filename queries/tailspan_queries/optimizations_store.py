"""The optimisation ledger in ClickHouse: entries are written as spans over OTLP, and read by SQL.

The SQL port is read-only and the collector owns the data, so an entry goes the way of all data: one span of the role
`optimization`, acknowledged when it is safe on disk. Each change is one more span of the same trace; the view
`tailspan.optimizations` shows the latest. Where it goes is what the standard variables say (OTEL_EXPORTER_OTLP_*:
endpoint, protocol, headers, certificates), by default 127.0.0.1:4317 over gRPC.
Errors: `UserError` if nothing takes the span, and for an id that fits none or several entries.
"""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tailspan import attributes as attr
from tailspan.errors import UserError
from tailspan.ids import new_span_id
from tailspan_queries.client import Client
from tailspan_queries.filters import Filters
from tailspan_queries.optimizations_records import Claim, Cost, Optimization
from tailspan_queries.times import Window

SERVICE = "tailspan"
"""service.name of the spans of the ledger."""
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
SEEN_S = 15.0
"""How long to wait until ClickHouse shows what the collector took."""


def write(entries: Sequence[Optimization], endpoint: str = "") -> None:
    """Send the state of entries; return when the collector has them on disk.

    Raises: UserError if it does not take them.
    """
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExportResult

    from tailspan.agent.otlp import span_exporter
    from tailspan.agent.reporting import DESTINATIONS, ReportingSpanExporter
    from tailspan.agent.settings import otlp_value
    from tailspan.agent.span import Span

    protocol = otlp_value("TRACES", "PROTOCOL") or "grpc"
    if protocol not in DESTINATIONS:
        raise UserError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}", f"Use one of: {', '.join(DESTINATIONS)}")
    now_ns = time.time_ns()
    resource = Resource({attr.SERVICE_NAME: SERVICE})
    with endpoint_set(endpoint):
        exporter = ReportingSpanExporter(span_exporter(protocol), DESTINATIONS[protocol])
    spans = [
        Span(resource, attr.ROLE_OPTIMIZATION, int(item.id, 16), new_span_id(), now_ns, now_ns, to_attributes(item))
        for item in entries
    ]
    try:
        taken = exporter.export([exporter.prepare(span) for span in spans]) is SpanExportResult.SUCCESS
    finally:
        exporter.shutdown()
    if not taken:
        where = endpoint or otlp_value("TRACES", "ENDPOINT") or "the local collector"
        raise UserError(
            f"{where} did not take the entry ({DESTINATIONS[protocol]})",
            "Start the collector with `tailspan up`, or name its OTLP endpoint: --otlp or OTEL_EXPORTER_OTLP_ENDPOINT",
        )


@contextmanager
def endpoint_set(endpoint: str) -> Iterator[None]:
    """Let the exporter find an endpoint where it looks, in the environment: that of all signals, without a path.

    Raises: UserError if it is no http(s) address.
    """
    if not endpoint:
        yield
        return
    if not endpoint.startswith(("http://", "https://")):
        raise UserError(f"{endpoint!r} is no OTLP endpoint", "Use http://HOST:PORT, for example http://localhost:4317")
    kept = {name: os.environ.pop(name, None) for name in ENDPOINTS}
    os.environ[ENDPOINTS[0]] = endpoint
    try:
        yield
    finally:
        del os.environ[ENDPOINTS[0]]
        os.environ.update({name: value for name, value in kept.items() if value is not None})


def read(client: Client, *, removed: bool = False) -> list[Optimization]:
    """Return the entries in the order in which they were recorded; removed ones only if asked for."""
    return [from_row(row) for row in client.run("optimizations", {"removed": removed}).records()]


def find(entries: Sequence[Optimization], text: str) -> Optimization:
    """Return the entry whose id begins with a text, or whose name it is.

    Raises: UserError if none or several do.
    """
    wanted = text.strip().lower()
    found = [item for item in entries if item.name == text.strip()]
    found = found or [item for item in entries if wanted and item.id.startswith(wanted)]
    if len(found) != 1:
        amount = f"{len(found)} entries fit" if found else "no entry fits"
        raise UserError(f"{amount} {text!r}", "`tailspan optimizations list` shows ids; the first digits are enough")
    return found[0]


def remove(client: Client, text: str, endpoint: str = "") -> Optimization:
    """Take an entry out of the ledger; what was written before stays stored.

    Raises: UserError as `find` and `write`.
    """
    item = replace(find(read(client), text), removed=True, recorded_by=user())
    write([item], endpoint)
    return item


def wait_seen(client: Client, entries: Sequence[Optimization]) -> bool:
    """Wait until ClickHouse shows the state of entries as it was written; return whether it does."""
    wanted = {(item.id, item.removed) for item in entries}
    deadline = time.monotonic() + SEEN_S
    while not wanted <= {(item.id, item.removed) for item in read(client, removed=True)}:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def user() -> str:
    """Return the name of whoever runs this; empty if the system knows none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def to_attributes(item: Optimization) -> dict[str, Any]:
    """Return the attributes of an entry's span; what is not said is left out."""
    found: dict[str, Any] = {
        attr.OPTIMIZATION_NAME: item.name,
        attr.OPTIMIZATION_STAGE: item.stage,
        attr.OPTIMIZATION_KIND: item.kind,
        attr.OPTIMIZATION_SOURCE: item.source,
        attr.OPTIMIZATION_BY: item.recorded_by,
        attr.OPTIMIZATION_SERVICE: item.filters.service,
        attr.OPTIMIZATION_MODEL: item.filters.model,
        attr.OPTIMIZATION_INSTANCE: item.filters.instance,
        attr.OPTIMIZATION_COST: item.cost.text,
        attr.OPTIMIZATION_COST_MEMORY: item.cost.gpu_memory_bytes,
        attr.OPTIMIZATION_COST_ACCURACY: float(item.cost.accuracy_points),
        attr.OPTIMIZATION_REMOVED: item.removed,
    }
    if item.before and item.after:
        found[attr.OPTIMIZATION_BEFORE_SINCE] = item.before.since_ns
        found[attr.OPTIMIZATION_BEFORE_UNTIL] = item.before.until_ns
        found[attr.OPTIMIZATION_AFTER_SINCE] = item.after.since_ns
        found[attr.OPTIMIZATION_AFTER_UNTIL] = item.after.until_ns
    if item.claim:
        found[attr.OPTIMIZATION_CLAIM_BEFORE] = float(item.claim.before_ns)
        found[attr.OPTIMIZATION_CLAIM_AFTER] = float(item.claim.after_ns)
        found[attr.OPTIMIZATION_CLAIM_PER] = item.claim.per
        found[attr.OPTIMIZATION_CLAIM_TOKENS] = float(item.claim.tokens or 0)
    found = {key: value for key, value in found.items() if value}
    layer = {} if item.layer is None else {attr.OPTIMIZATION_LAYER: item.layer}
    return {attr.ROLE: attr.ROLE_OPTIMIZATION, **found, **layer}


def from_row(row: dict[str, Any]) -> Optimization:
    """Read a row of query `optimizations`."""
    windowed = row["before_until_ns"] > 0 and row["after_until_ns"] > 0
    claim = Claim(
        row["claim_before_ns"],
        row["claim_after_ns"],
        "token" if row["claim_per"] == "token" else "request",
        row["claim_tokens"] or None,
    )
    return Optimization(
        row["id"],
        row["name"],
        row["stage"],
        layer=None if row["layer"] < 0 else row["layer"],
        kind=row["kind"],
        before=Window(row["before_since_ns"], row["before_until_ns"]) if windowed else None,
        after=Window(row["after_since_ns"], row["after_until_ns"]) if windowed else None,
        filters=Filters(row["service"], row["model"], row["instance"]),
        cost=Cost(row["cost"], row["cost_gpu_memory_bytes"], row["cost_accuracy_points"]),
        claim=claim if row["claim_per"] else None,
        source=row["source"],
        recorded_by=row["recorded_by"],
        recorded=row["recorded"],
        removed=row["removed"],
    )
