"""The commands `tailspan up`, `tailspan collector` and `tailspan migrate`."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from typing import Any

import click

from tailspan.cli import run_click
from tailspan_collector.embedded import Engine, Folder
from tailspan_collector.options import Tables, options, read_settings
from tailspan_collector.runtime import Runtime
from tailspan_collector.server import Server
from tailspan_collector.settings import DEFAULT_DATA, Settings
from tailspan_schemas import migrations


@click.command(name="up")
@options("up")
def up_command(config: Path | None, **given: Any) -> int:
    """Start the collector with an embedded ClickHouse: nothing to install, data in one folder."""
    return _serve(*read_settings("up", given, config))


@click.command(name="collector")
@options("collector")
def collector_command(config: Path | None, **given: Any) -> int:
    """Start the collector for a ClickHouse server or cluster; the data folder only holds the spool."""
    return _serve(*read_settings("collector", given, config, clickhouse_url="http://127.0.0.1:8123"))


@click.command(name="migrate")
@click.option(
    "--data",
    envvar="TAILSPAN_DATA",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_DATA,
    show_default=True,
    help="folder for everything that is kept",
)
@click.option("--clickhouse", default=None, help="URL of a ClickHouse server instead of the data folder")
@click.option("--apply", "apply_pending", is_flag=True, help="apply what is pending; without it, only show")
def migrate_command(data: Path, clickhouse: str | None, apply_pending: bool) -> int:
    """Show which schema migrations are applied and pending, or apply them."""
    if clickhouse is not None:
        server = Server(clickhouse)
        try:
            _migrate(server, apply_pending)
        finally:
            server.close()
        return 0
    folder = Folder(data)
    try:
        with Engine(folder.path / "clickhouse") as engine:
            _migrate(engine, apply_pending)
    finally:
        folder.close()
    return 0


def _migrate(database: migrations.Database, apply_pending: bool) -> None:
    plan = migrations.apply(database) if apply_pending else migrations.plan(database)
    for state, items in (("applied", plan.applied), ("applied now" if apply_pending else "pending", plan.pending)):
        for item in items:
            click.echo(f"{item.version:04}  {item.name:<20} {state}")
    if plan.pending and not apply_pending:
        click.echo(f"{len(plan.pending)} pending. Apply them with: tailspan migrate --apply")


def _serve(settings: Settings, forward: Tables) -> int:
    del forward  # wired with the forwarder
    logging.basicConfig(format="tailspan: %(levelname)s: %(message)s", level=logging.WARNING)
    for library in ("urllib3", "clickhouse_connect"):
        logging.getLogger(library).setLevel(logging.CRITICAL)  # our own messages say what is going on
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if not settings.is_loopback:
        click.echo(
            f"tailspan: warning: listening on {settings.host} without authentication; "
            "anyone who can reach the ports can send spans and read all data",
            err=True,
        )
    runtime = Runtime(settings)
    try:
        _announce(runtime, settings)
        runtime.wait(stop)
        click.echo("tailspan: stopping, storing what was received")
    finally:
        runtime.close()
    return 0


def _announce(runtime: Runtime, settings: Settings) -> None:
    endpoints = runtime.endpoints
    click.echo(f"tailspan: OTLP/gRPC   {endpoints.otlp}")
    what = "SQL (read)" if settings.clickhouse_url is None else "ClickHouse"
    click.echo(f"tailspan: {what:<11} {endpoints.clickhouse}")
    click.echo(f"tailspan: data        {endpoints.data}")
    click.echo("tailspan: ready; stop with Ctrl-C")


def up(argv: list[str]) -> int:
    """Run `tailspan up`."""
    return run_click(up_command, argv)


def collector(argv: list[str]) -> int:
    """Run `tailspan collector`."""
    return run_click(collector_command, argv)


def migrate(argv: list[str]) -> int:
    """Run `tailspan migrate`."""
    return run_click(migrate_command, argv)
