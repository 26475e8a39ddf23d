"""ClickHouse inside this process (chDB): one owner for each data folder, many handles.

chDB opens one path in one process and one path for each process; every thread that queries takes its own handle.

Errors: `UserError` if the folder is in use by another process, belongs to another user, or cannot be written.
"""

from __future__ import annotations

import fcntl
import os
import pwd
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import chdb

from tailspan.errors import UserError
from tailspan_collector.errors import classify
from tailspan_collector.rowbinary import reject_row
from tailspan_collector.signals import Signal
from tailspan_collector.sink import REJECTS_COLUMNS, REJECTS_TABLE, Body, Reject, insert_settings, reject_settings


class Folder:
    """The data folder, locked for this process until `close`."""

    def __init__(self, path: Path) -> None:
        """Create and lock the folder.

        Raises:
            UserError: it cannot be used; the message says why.
        """
        self.path = path.resolve()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(self.path, error) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise UserError(
                f"data folder {self.path} is in use by process {owner}",
                f"Stop that process (kill {owner}) or give another folder with --data",
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Unlock the folder."""
        os.close(self._descriptor)


def _unusable(path: Path, error: OSError) -> UserError:
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    uid = existing.stat().st_uid
    if isinstance(error, PermissionError) and uid != os.getuid():
        try:
            owner = pwd.getpwuid(uid).pw_name
        except KeyError:
            owner = f"uid {uid}"
        return UserError(
            f"data folder {path} is not writable: {existing} belongs to user {owner}",
            f"Run tailspan as {owner} or give a folder of your own with --data",
        )
    return UserError(f"data folder {path} cannot be used: {error.strerror}", "Give a writable folder with --data")


class Engine:
    """An open chDB database."""

    def __init__(self, folder: Path) -> None:
        """Open or create the database; `folder` must be locked by a `Folder`.

        Raises:
            UserError: chDB cannot open the folder.
        """
        self._path = str(folder)
        try:
            self._root = chdb.connect(self._path)
        except RuntimeError as error:
            raise UserError(
                f"the embedded ClickHouse cannot open {folder}: {str(error).splitlines()[0]}",
                "Stop any other program that uses the folder, or give another one with --data",
            ) from error
        self._hide_file_system()

    def connect(self) -> Any:
        """Return a new chDB handle (about 20 us); close it after use."""
        return chdb.connect(self._path)

    def command(self, sql: str) -> None:
        """Run a statement that returns nothing."""
        self._root.query(sql)

    def rows(self, sql: str) -> Sequence[Sequence[str]]:
        """Run a query; every value as text."""
        text = self._root.query(sql, "TSV").bytes().decode()
        return [line.split("\t") for line in text.splitlines()]

    def ping(self) -> None:
        """Run a trivial query; may be called from any thread."""
        handle = self.connect()
        try:
            handle.query("select 1")
        finally:
            handle.close()

    def close(self) -> None:
        """Close the database."""
        self._root.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hide_file_system(self) -> None:
        # chDB's `default` is an overlay in which every file of the machine is a table.
        self.command("drop database if exists default")
        self.command("create database if not exists default engine = Memory")


class EmbeddedSink:
    """Inserts through chDB; see `sink.Sink`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def insert(self, signal: Signal, body: Body, token: str) -> None:
        """See `Sink`."""
        settings = {**insert_settings(token), "format_schema": f"{signal.proto_file}:{signal.proto_message}"}
        self._insert_file(signal.table, "Protobuf", settings, body)

    def reject(self, *rejects: Reject) -> None:
        """See `Sink`."""
        into = f"{REJECTS_TABLE} ({', '.join(REJECTS_COLUMNS)})"
        self._insert_file(into, "RowBinary", reject_settings(rejects[0].token), b"".join(map(reject_row, rejects)))

    def _insert_file(self, table: str, form: str, settings: dict[str, str | int], body: Body) -> None:
        # INFILE raises errors of views too; chDB's send_insert swallows them.
        file = os.memfd_create("tailspan-insert", os.MFD_CLOEXEC)
        try:
            with open(file, "wb", closefd=False) as stream:
                stream.write(body)
            clause = ", ".join(f"{name} = {_literal(value)}" for name, value in settings.items())
            handle = self._engine.connect()
            try:
                handle.query(f"insert into {table} from infile '/proc/self/fd/{file}' settings {clause} format {form}")
            except Exception as error:
                raise classify(str(error)) from error
            finally:
                handle.close()
        finally:
            os.close(file)


def _literal(value: str | int) -> str:
    if isinstance(value, int):
        return str(value)
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
