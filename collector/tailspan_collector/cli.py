"""The commands `tailspan up`, `tailspan collector` and `tailspan migrate`."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path

import click

from tailspan.cli import run_click
from tailspan_collector.embedded import Engine, Folder
from tailspan_collector.runtime import Runtime
from tailspan_collector.server import Server
from tailspan_collector.settings import DEFAULT_DATA, Settings
from tailspan_schemas import migrations

_DEFAULTS = Settings()
_data = click.option(
    "--data",
    envvar="TAILSPAN_DATA",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_DATA,
    show_default=True,
    help="folder for everything that is kept",
)
_host = click.option(
    "--host", envvar="TAILSPAN_HOST", default=_DEFAULTS.host, show_default=True, help="address to listen on"
)
_otlp_port = click.option(
    "--otlp-port",
    envvar="TAILSPAN_OTLP_PORT",
    type=int,
    default=_DEFAULTS.otlp_port,
    show_default=True,
    help="OTLP/gRPC port; 0 = any free port",
)
_http_port = click.option(
    "--http-port",
    envvar="TAILSPAN_HTTP_PORT",
    type=int,
    default=_DEFAULTS.http_port,
    show_default=True,
    help="read-only ClickHouse HTTP port; 0 = any free port",
)
_max_request = click.option(
    "--max-request",
    "max_request_bytes",
    envvar="TAILSPAN_MAX_REQUEST_BYTES",
    type=int,
    default=_DEFAULTS.max_request_bytes,
    show_default=True,
    help="largest request, bytes after decompression",
)
_max_spool = click.option(
    "--max-spool",
    "max_spool_bytes",
    envvar="TAILSPAN_MAX_SPOOL_BYTES",
    type=int,
    default=_DEFAULTS.max_spool_bytes,
    show_default=True,
    help="bytes that may wait for ClickHouse before senders are asked to wait",
)
_batch_bytes = click.option(
    "--batch-bytes",
    envvar="TAILSPAN_BATCH_BYTES",
    type=int,
    default=_DEFAULTS.batch_bytes,
    show_default=True,
    help="largest insert, bytes",
)
_batch_seconds = click.option(
    "--batch-seconds",
    envvar="TAILSPAN_BATCH_SECONDS",
    type=float,
    default=_DEFAULTS.batch_seconds,
    show_default=True,
    help="longest wait before an insert, seconds",
)


@click.command(name="up", context_settings={"show_default": True})
@_data
@_host
@_otlp_port
@_http_port
@_max_request
@_max_spool
@_batch_bytes
@_batch_seconds
def up_command(
    data: Path,
    host: str,
    otlp_port: int,
    http_port: int,
    max_request_bytes: int,
    max_spool_bytes: int,
    batch_bytes: int,
    batch_seconds: float,
) -> int:
    """Start the collector with an embedded ClickHouse: nothing to install, data in one folder."""
    return _serve(
        Settings(
            data,
            host,
            otlp_port,
            http_port,
            max_request_bytes=max_request_bytes,
            max_spool_bytes=max_spool_bytes,
            batch_bytes=batch_bytes,
            batch_seconds=batch_seconds,
        )
    )


@click.command(name="collector")
@click.option(
    "--clickhouse",
    envvar="TAILSPAN_CLICKHOUSE_URL",
    default="http://127.0.0.1:8123",
    show_default=True,
    help="URL of the ClickHouse server, 25.9 or newer",
)
@_data
@_host
@_otlp_port
@_max_request
@_max_spool
@_batch_bytes
@_batch_seconds
def collector_command(
    clickhouse: str,
    data: Path,
    host: str,
    otlp_port: int,
    max_request_bytes: int,
    max_spool_bytes: int,
    batch_bytes: int,
    batch_seconds: float,
) -> int:
    """Start the collector for a ClickHouse server; the data folder only holds the spool."""
    return _serve(
        Settings(
            data,
            host,
            otlp_port,
            clickhouse_url=clickhouse,
            max_request_bytes=max_request_bytes,
            max_spool_bytes=max_spool_bytes,
            batch_bytes=batch_bytes,
            batch_seconds=batch_seconds,
        )
    )


@click.command(name="migrate")
@_data
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


def _serve(settings: Settings) -> int:
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
