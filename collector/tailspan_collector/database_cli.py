"""Which ClickHouse a command for operators means, and opening it: a server, or the data folder of an embedded one.

    --clickhouse URL   a server or cluster, as `tailspan collector` takes it
    --data FOLDER      the embedded ClickHouse; only one process can open it, so while a collector runs it is read
                       through the collector's own port, and cannot be changed

In: flags, the variables TAILSPAN_*, and the keys of the collector's configuration file, in this order.
Errors: `UserError` if it is not there, not reachable, or in use by a collector and the command changes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import click
from clickhouse_connect.driver.exceptions import ClickHouseError

from tailspan.errors import UserError
from tailspan_collector.embedded import Engine, Folder
from tailspan_collector.files import read_json
from tailspan_collector.options import read_file
from tailspan_collector.server import Server
from tailspan_collector.server_endpoint import ServerConfig
from tailspan_collector.settings import DEFAULT_DATA, Settings
from tailspan_schemas.migrations import Database

NAMES = (
    "data",
    "clickhouse_url",
    "clickhouse_user",
    "clickhouse_password",
    "clickhouse_token",
    "clickhouse_ca",
    "clickhouse_cert",
    "clickhouse_key",
    "cluster",
)
_HELP = {item.name: item.metadata["help"] for item in fields(Settings)} | {
    "data": "data folder of the embedded ClickHouse",
    "clickhouse_cert": "client certificate (PEM) for the ClickHouse server",
    "clickhouse_key": "private key of --clickhouse-cert (PEM)",
}
_PATHS = ("data", "clickhouse_ca", "clickhouse_cert", "clickhouse_key")
C = TypeVar("C", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Where:
    """The ClickHouse that was meant: a server if `server` is set, else the data folder."""

    data: Path
    server: ServerConfig | None
    cluster: str = ""
    token: str = field(default="", repr=False)
    """For the port of an embedded collector that asks for one."""

    @property
    def endpoints(self) -> dict[str, Any]:
        """Where the collector that uses the data folder listens; empty if none runs."""
        found = read_json(self.data / "endpoints.json")
        return found if isinstance(found, dict) else {}


def database_options(command: C) -> C:
    """Add the options; the command then gets them as keywords for `where`."""
    for name in reversed(NAMES):
        words = [f"--{name.replace('_', '-')}", *(["--clickhouse"] if name == "clickhouse_url" else [])]
        kind: Any = click.Path(path_type=Path) if name in _PATHS else str
        variable = f"TAILSPAN_{name.upper()}"
        shown = f"  [default: {DEFAULT_DATA}]" if name == "data" else ""
        command = click.option(*words, name, envvar=variable, type=kind, help=f"{_HELP[name]}{shown}")(command)
    kind = click.Path(path_type=Path, dir_okay=False)
    return click.option("--config", envvar="TAILSPAN_CONFIG", type=kind, help="TOML file of the collector")(command)


def where(given: Mapping[str, Any], outer: Mapping[str, Any] | None = None) -> Where:
    """Read the options; takes the keywords of `database_options` out of `given`, whatever else is there.

    In: `outer`, the options of the group that a command belongs to, which count where the command has none.

    Raises:
        UserError: the configuration file cannot be read.
    """
    given = {**(outer or {}), **{name: value for name, value in given.items() if value is not None}}
    file = read_file(given["config"]) if given.get("config") else {}
    values = {name: given[name] if given.get(name) is not None else file.get(name) for name in NAMES}
    paths = {name: Path(str(values[name])) if values[name] else None for name in _PATHS}
    text = {name: str(values[name] or "") for name in NAMES if name not in _PATHS}
    data = paths["data"] or DEFAULT_DATA
    if not text["clickhouse_url"]:
        return Where(data, None, text["cluster"], text["clickhouse_token"])
    config = ServerConfig(
        text["clickhouse_url"],
        text["clickhouse_user"],
        text["clickhouse_password"],
        text["clickhouse_token"],
        paths["clickhouse_ca"],
        paths["clickhouse_cert"],
        paths["clickhouse_key"],
        text["cluster"],
    )
    return Where(data, config, text["cluster"])


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Turn an error of ClickHouse, embedded or not, into one that says what was refused and why.

    Raises:
        UserError: instead of the driver's error.
    """
    try:
        yield
    except UserError:
        raise
    except (ClickHouseError, RuntimeError) as error:  # RuntimeError: chDB's
        text = str(error).partition("DB::Exception: ")[2] or str(error)
        reason = text.partition(" (version")[0].splitlines()[0][:300].rstrip(".")
        raise UserError(f"ClickHouse refused {what}: {reason}", "Correct the cause and run it again") from error


@contextmanager
def opened(place: Where, *, changes: bool, creates: bool = False) -> Iterator[Database]:
    """Open the database; `changes` = it will be written to, `creates` = it need not exist yet.

    Raises:
        UserError: it cannot be used; see the module.
    """
    logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)  # its errors reach the user as a line of ours
    if place.server is not None:
        with _server(place.server) as server:
            yield server
        return
    if not creates and not (place.data / "clickhouse").exists():
        raise UserError(
            f"there is no tailspan data in {place.data}", "Name the folder with --data or a server with --clickhouse"
        )
    try:
        folder = Folder(place.data)
    except UserError:
        endpoints = place.endpoints
        if "clickhouse" not in endpoints:
            raise
        if changes:
            raise UserError(
                f"a collector (process {endpoints.get('pid')}) has the data folder {place.data} open",
                "Stop it, run this command, and start it again",
            ) from None
        with _server(ServerConfig(str(endpoints["clickhouse"]), token=place.token)) as server:
            yield server
        return
    try:
        with Engine(folder.path / "clickhouse") as engine:
            yield engine
    finally:
        folder.close()


@contextmanager
def _server(config: ServerConfig) -> Iterator[Server]:
    server = Server(config)
    try:
        server.connect()
        yield server
    finally:
        server.close()
