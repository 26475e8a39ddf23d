"""The cluster form of the schema: a pure function from the shipped statements to those of a ClickHouse cluster.

    table X of a MergeTree   ->  X_local, replicated, on every shard; X, Distributed over them by a hash of the trace id
    table X of engine Null   ->  the same on every node; what enters there is spread by the views behind it
    view                     ->  the same on every node; it reads X and so the whole cluster
    materialized view        ->  of what enters (a Null table): into X, which spreads the rows over the shards
                                 of what is stored: from X_local into Y_local, on the shard where the rows lie, also
                                 by way of a Null table in between
    table `migrations`       ->  one replicated table of all nodes

All spans of a trace lie on one shard, and what a view makes of them beside them; see docs/CLICKHOUSE.md.
Needs the macros {shard} and {replica} and `internal_replication` in the configuration of the servers.
Errors: `UnknownStatement` (see `statements`) for a form that is not known; `UserError` for a bad cluster name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tailspan.errors import UserError
from tailspan_schemas.statements import DATABASE, Place, Statement, UnknownStatement, parse

UNSHARDED = frozenset({"migrations"})
SHARD_KEYS = {"rejects": "cityHash64(batch)"}
"""Tables whose own columns do not say on which shard a row, inserted again, has to lie again."""
_KEEP_TOKENS_S = 7 * 24 * 3600
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_FAMILY = re.compile(r"(?:Replacing|Summing|Aggregating|Collapsing|VersionedCollapsing)?MergeTree")
_NO_ALIASES = (
    "where",
    "prewhere",
    "array",
    "group",
    "order",
    "limit",
    "final",
    "sample",
    "settings",
    "union",
    "comment",
)


def check_name(cluster: str) -> str:
    """Return the name of a cluster if it is one.

    Raises:
        UserError: it has other signs than letters, digits, `_` and `-`.
    """
    if not _NAME.fullmatch(cluster):
        raise UserError(f"{cluster!r} is no cluster name", "Use a name from: select cluster from system.clusters")
    return cluster


def cluster_form(sqls: Sequence[str], cluster: str) -> list[tuple[str, ...]]:
    """Return for each shipped statement the statements that stand for it on a cluster, in order.

    Raises:
        UnknownStatement: a statement has a form that is not known here.
        UserError: the cluster has no proper name.
    """
    check_name(cluster)
    statements = [parse(sql) for sql in sqls]
    return [_one(item, _Tables(statements), cluster) for item in statements]


class _Tables:
    """What the schema's tables are, and where the rows of each are when a view sees them."""

    def __init__(self, statements: Sequence[Statement]) -> None:
        self._tables = {item.name.text: item for item in statements if item.kind == "table"}
        self._views = [item for item in statements if item.kind == "materialized view"]

    def is_stored(self, name: str) -> bool:
        """Whether a table keeps its rows."""
        if name not in self._tables:
            raise UnknownStatement(f"a materialized view uses {name}, which is no shipped table")
        engine = self._tables[name].engine
        return engine is not None and engine.text != "Null"

    def is_on_shard(self, name: str) -> bool:
        """Whether the rows that a view sees in a table are on their shard already: stored, or made from such."""
        if self.is_stored(name):
            return True
        found = {self.is_on_shard(view.sources[0].text) for view in self._views if _feeds(view, name)}
        if len(found) > 1:
            raise UnknownStatement(f"table {name} gets rows both before and after they are spread over the shards")
        return found == {True}


def _feeds(view: Statement, name: str) -> bool:
    return view.target is not None and view.target.text == name != view.sources[0].text


def _one(statement: Statement, tables: _Tables, cluster: str) -> tuple[str, ...]:
    on_cluster = f" on cluster `{cluster}`"
    if statement.kind == "table":
        return _table(statement, cluster, on_cluster)
    changes = [_after(statement.name, on_cluster)]
    if statement.kind == "materialized view":
        changes += _view_on_shard(statement, tables)
    return (_edit(statement.sql, changes),)


def _table(statement: Statement, cluster: str, on_cluster: str) -> tuple[str, ...]:
    name = statement.name.text
    engine = statement.engine
    if engine is None or engine.text == "Null":
        return (_edit(statement.sql, [_after(statement.name, on_cluster)]),)
    if not _FAMILY.fullmatch(engine.text):
        raise UnknownStatement(f"table {name} has the engine {engine.text}, which has no cluster form")
    if name in UNSHARDED:
        changes = [_after(statement.name, on_cluster), _replicated(statement, cluster, "all", "{shard}-{replica}")]
        return (_edit(statement.sql, changes),)
    local = Place(f"{DATABASE}.{name}_local{on_cluster}", statement.name.start, statement.name.end)
    sql = _edit(statement.sql, [local, _replicated(statement, cluster, "{shard}", "{replica}")])
    sql = sql.replace(
        "non_replicated_deduplication_window =",
        f"replicated_deduplication_window_seconds = {_KEEP_TOKENS_S}, replicated_deduplication_window =",
    )
    distributed = (
        f"create table if not exists {DATABASE}.{name}{on_cluster} as {DATABASE}.{name}_local\n"
        f"engine = Distributed('{cluster}', '{DATABASE}', '{name}_local', {_shard_key(statement)})\n"
        f"comment 'The rows of {name}_local on all shards'"
    )
    return sql, distributed


def _replicated(statement: Statement, cluster: str, shard: str, replica: str) -> Place:
    engine = statement.engine
    if engine is None:
        raise UnknownStatement(f"table {statement.name.text} has no engine")
    path = f"'/clickhouse/tables/{cluster}/{{database}}/{{table}}/{shard}', '{replica}'"
    bracket = re.match(r"\s*\(\s*(\)?)", statement.sql[engine.end :])
    if bracket is None:
        return Place(f"Replicated{engine.text}({path})", engine.start, engine.end)
    rest = ")" if bracket[1] else ", "
    return Place(f"Replicated{engine.text}({path}{rest}", engine.start, engine.end + bracket.end())


def _shard_key(statement: Statement) -> str:
    if statement.name.text in SHARD_KEYS:
        return SHARD_KEYS[statement.name.text]
    if "trace_id" in statement.columns:
        return "cityHash64(trace_id)"
    if not statement.order_by or statement.order_by == "tuple()":
        raise UnknownStatement(f"table {statement.name.text} has nothing to shard by")
    key = statement.order_by[1:-1] if _is_list(statement) else statement.order_by
    return f"cityHash64({key})"


def _is_list(statement: Statement) -> bool:
    """Whether the sorting key is one pair of brackets around everything."""
    depth = 0
    for position, sign in enumerate(statement.order_by):
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            return statement.order_by.startswith("(") and position == len(statement.order_by) - 1
    return False


def _view_on_shard(statement: Statement, tables: _Tables) -> list[Place]:
    source, target = statement.sources[0], statement.target
    if len(statement.sources) > 1 or target is None:
        raise UnknownStatement(f"materialized view {statement.name.text} does not read exactly one table")
    changes: list[Place] = []
    spreads = not tables.is_on_shard(source.text)
    if tables.is_stored(target.text) and not spreads:
        changes.append(Place(f"{DATABASE}.{target.text}_local", target.start, target.end))
    if tables.is_stored(source.text):
        following = re.match(r"\s*(\w*)", statement.sql[source.end :])
        has_alias = following is not None and following[1] != "" and following[1].lower() not in _NO_ALIASES
        alias = "" if has_alias else f" as {source.text}"
        changes.append(Place(f"{DATABASE}.{source.text}_local{alias}", source.start, source.end))
    return changes


def _after(place: Place, text: str) -> Place:
    return Place(text, place.end, place.end)


def _edit(sql: str, changes: Sequence[Place]) -> str:
    for change in sorted(changes, key=lambda place: place.start, reverse=True):
        sql = sql[: change.start] + change.text + sql[change.end :]
    return sql
