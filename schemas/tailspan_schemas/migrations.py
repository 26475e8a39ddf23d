"""Which schema files a database still needs, and applying them in order.

The files `sql/NNNN_name.sql` are append-only: one object each, never edited once released. Each applied file leaves one
row in `tailspan.migrations`; every file is idempotent, so one that was interrupted is simply run again, and several
programs that apply at once do no harm. On a cluster the statements are those of `cluster.py`; the checksum is that of
the shipped file all the same.

Errors: `UserError` when a file that was applied has changed since, when the database is newer than this program, or
when it was made for a cluster and none is named, or the other way round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tailspan.errors import UserError
from tailspan_schemas.cluster import cluster_form

SQL_FOLDER = Path(__file__).parent / "sql"
PROTO_FOLDER = Path(__file__).parent
PROTO_FILE = PROTO_FOLDER / "otlp_traces.proto"
PROTO_MESSAGE = "TracesRequest"


class Database(Protocol):
    """What migrations need from ClickHouse, embedded or not."""

    def command(self, sql: str) -> None:
        """Run a statement that returns nothing."""

    def rows(self, sql: str) -> Sequence[Sequence[str]]:
        """Run a query; every value as text."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One schema file."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the file text, hexadecimal."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Plan:
    """What was applied to a database and what is pending, each in order of version."""

    applied: tuple[Migration, ...]
    pending: tuple[Migration, ...]


def load(folder: Path = SQL_FOLDER) -> tuple[Migration, ...]:
    """Read the schema files in order; versions must run from 1 without a gap."""
    migrations = []
    for expected, path in enumerate(sorted(folder.glob("*.sql")), start=1):
        number, _, name = path.stem.partition("_")
        if int(number) != expected:
            raise ValueError(f"{path.name}: expected number {expected:04}")
        migrations.append(Migration(expected, name, path.read_text(encoding="utf-8")))
    return tuple(migrations)


def statements(migrations: Sequence[Migration], cluster: str = "") -> dict[int, tuple[str, ...]]:
    """Return what each schema file runs, by version; `migrations` is the whole schema from version 1 on."""
    if not cluster:
        return {item.version: (item.sql,) for item in migrations}
    forms = cluster_form([item.sql for item in migrations], cluster)
    return {item.version: form for item, form in zip(migrations, forms, strict=True)}


def plan(database: Database, migrations: Sequence[Migration] | None = None, cluster: str = "") -> Plan:
    """Compare the schema files with what the database says was applied."""
    known = load() if migrations is None else tuple(migrations)
    checksums = {int(version): checksum for version, checksum in _applied(database)}
    if newer := [version for version in checksums if version > len(known)]:
        raise UserError(
            f"the database has schema version {max(newer)}, this tailspan knows up to {len(known)}",
            "Upgrade tailspan: pip install --upgrade tailspan",
        )
    for migration in known:
        if checksums.get(migration.version, migration.checksum) != migration.checksum:
            raise UserError(
                f"schema file {migration.version:04}_{migration.name}.sql was changed after it had been applied",
                "Restore the file and put the change into a new one with the next number",
            )
    if checksums:
        _check_cluster(database, cluster)
    return Plan(
        applied=tuple(item for item in known if item.version in checksums),
        pending=tuple(item for item in known if item.version not in checksums),
    )


def apply(database: Database, migrations: Sequence[Migration] | None = None, cluster: str = "") -> Plan:
    """Apply what is pending; return the plan that was carried out."""
    todo = plan(database, migrations, cluster)
    if not todo.pending:
        return todo
    runs = statements(load() if migrations is None else migrations, cluster)
    unrecorded = []
    for migration in todo.pending:
        for statement in runs[migration.version]:
            database.command(statement)
        unrecorded.append(migration)
        if migration.version >= 2:  # the table of applied files is itself file 2
            for done in unrecorded:
                database.command(record(done))
            unrecorded.clear()
    return todo


def _applied(database: Database) -> Sequence[Sequence[str]]:
    if database.rows("exists table tailspan.migrations")[0][0] != "1":
        return []
    return database.rows("select version, any(checksum) from tailspan.migrations group by version order by version")


def cluster_of(database: Database) -> str:
    """Return the name of the cluster that the tables were made for; empty = none."""
    sql = r"select extract(engine_full, '^Distributed\\W+([\\w-]+)') from system.tables where database = 'tailspan'"
    rows = database.rows(f"{sql} and name = 'spans'")
    return rows[0][0] if rows else ""


def _check_cluster(database: Database, cluster: str) -> None:
    if database.rows("exists table tailspan.spans")[0][0] != "1" or (made := cluster_of(database)) == cluster:
        return
    if made:
        raise UserError(f"the tables were made for the cluster {made!r}", f"Give --cluster {made}")
    raise UserError(
        "the tables were made for one server, not for a cluster",
        "Leave --cluster out, or move the data: docs/CLICKHOUSE.md",
    )


def record(migration: Migration) -> str:
    """Return the statement that notes a file as applied."""
    return (
        "insert into tailspan.migrations (version, name, checksum, applied_at) "
        f"select {migration.version}, '{migration.name}', '{migration.checksum}', now64(3)"
    )
