"""How long rows are kept, and when they move to other storage: the TTL of the tables, off until somebody sets it.

A TTL counts in whole days of the row's own time, UTC. Tables are cut by day and a part is dropped as a whole
(`ttl_only_drop_parts`), so deleting costs no rewriting; it happens within about four hours of midnight, which is how
often ClickHouse looks (`merge_with_ttl_timeout`).
In a cluster the TTL belongs to the table X_local of each shard; the cluster is read from the tables.

In: a `Database`. Out: `Kept` for each table, and the ALTER statements of a change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tailspan_schemas.migrations import Database, cluster_of

GROUPS = {
    "spans": (r"spans|spans_sample|engine_requests", "start"),
    "layers": (r"layers", "start"),
    "rollups": (r"stage_minutes", "minute"),
    "hours": (r"stage_hours", "hour"),
    "traces": (r"traces", "day"),
    "optimizations": (r"optimization_records", "start"),
    "rejects": (r"rejects", "rejected_at"),
    "logs": (r"otel_logs", "Timestamp"),
    "metrics": (r"otel_metrics_\w+", "TimeUnix"),
}
"""What is kept for one time: names of tables as a pattern, and the column by which a row is dated."""
SETTINGS = "ttl_only_drop_parts = 1, materialize_ttl_recalculate_only = 1"
_DAYS = r"toDate32\((?P<column>\w+)\) \+ toIntervalDay\((?P<days>\d+)\)"
_DELETE = re.compile(rf"{_DAYS}(?: DELETE)?")
_MOVE = re.compile(rf"{_DAYS} TO VOLUME '(?P<volume>[^']*)'")
_TTL = r"extract(engine_full, ' TTL (.*?)(?: SETTINGS |$)')"
_POLICY = r"extract(engine_full, 'storage_policy = .([\\w-]+)')"


@dataclass(frozen=True, slots=True)
class Rule:
    """What happens to rows of a certain age; None = nothing."""

    delete_days: int | None = None
    move_days: int | None = None
    volume: str = ""
    other: str = ""
    """A TTL that somebody else set and that this module cannot read."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A table, its rule, and what it holds now."""

    group: str
    table: str
    column: str
    rule: Rule
    rows: int
    bytes: int
    oldest: str
    """Day of the oldest rows; empty = no rows."""
    policy: str


def show(database: Database) -> list[Kept]:
    """Return every table that can have a rule, in the order of `GROUPS`."""
    cluster = cluster_of(database)
    parts = f"cluster('{cluster}', system.parts)" if cluster else "system.parts"
    rows = database.rows(
        f"select name, hex({_TTL}), {_POLICY} from system.tables where database = 'tailspan' order by name"  # noqa: S608 (constants)
    )
    held = {
        name: (int(count), int(size), oldest)
        for name, count, size, oldest in database.rows(
            "select table, sum(rows), sum(bytes_on_disk), min(partition) "  # noqa: S608 (the name is checked)
            f"from {parts} where active and database = 'tailspan' group by table"
        )
    }
    suffix = "_local" if cluster else ""
    found = []
    for group, (pattern, column) in GROUPS.items():
        for name, ttl, policy in rows:
            if re.fullmatch(f"(?:{pattern}){suffix}", name) and not re.search("_mv(_local)?$", name):
                count, size, oldest = held.get(name, (0, 0, ""))
                rule = parse_rule(bytes.fromhex(ttl).decode())
                found.append(Kept(group, name, column, rule, count, size, oldest, policy or "default"))
    return found


def parse_rule(ttl: str) -> Rule:
    """Read the TTL clause of a table as ClickHouse prints it."""
    delete_days, move_days, volume = None, None, ""
    for part in filter(None, ttl.split(", ")):
        if move := _MOVE.fullmatch(part):
            move_days, volume = int(move["days"]), move["volume"]
        elif delete := _DELETE.fullmatch(part):
            delete_days = int(delete["days"])
        else:
            return Rule(other=ttl)
    return Rule(delete_days, move_days, volume)


def alter(kept: Kept, rule: Rule, cluster: str = "", policy: str = "") -> list[str]:
    """Return the statements that give a table another rule, and another storage policy if one is named."""
    on_cluster = f" on cluster `{cluster}`" if cluster else ""
    table = f"alter table tailspan.{kept.table}{on_cluster}"
    settings = f"{SETTINGS}, storage_policy = '{policy}'" if policy else SETTINGS
    clauses = []
    if rule.delete_days is not None:
        clauses.append(f"toDate32({kept.column}) + toIntervalDay({rule.delete_days}) delete")
    if rule.move_days is not None:
        clauses.append(f"toDate32({kept.column}) + toIntervalDay({rule.move_days}) to volume '{rule.volume}'")
    if clauses:
        return [f"{table} modify setting {settings}", f"{table} modify ttl {', '.join(clauses)}"]
    return [] if kept.rule == Rule() else [f"{table} remove ttl"]


def volumes(database: Database) -> dict[str, list[str]]:
    """Return the storage policies of the server and the volumes of each."""
    found: dict[str, list[str]] = {}
    for policy, volume in database.rows("select policy_name, volume_name from system.storage_policies"):
        found.setdefault(policy, []).append(volume)
    return found


def change(database: Database, changes: Sequence[tuple[Kept, Rule]], policy: str = "") -> list[str]:
    """Give tables other rules; return the statements that were run."""
    cluster = cluster_of(database)
    statements = [sql for kept, rule in changes for sql in alter(kept, rule, cluster, policy)]
    for sql in statements:
        database.command(sql)
    return statements
