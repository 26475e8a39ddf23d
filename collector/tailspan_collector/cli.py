"""The commands `tailspan up` and `tailspan collector`."""

from __future__ import annotations

import gc
import signal
import threading
from pathlib import Path
from typing import Any

import click

from tailspan.cli import run_click
from tailspan_collector import logs
from tailspan_collector.forward.config import destinations
from tailspan_collector.options import Tables, options, read_settings
from tailspan_collector.runtime import Runtime
from tailspan_collector.settings import Settings

_GC_THRESHOLD = 50_000  # allocations, instead of 700
_forward = click.option(
    "--forward",
    envvar="TAILSPAN_FORWARD",
    multiple=True,
    help="URL of a destination that gets the same data (grpc://, http://, kafka://, ...); may be given several times",
)


@click.command(name="up")
@options("up")
@_forward
def up_command(config: Path | None, forward: tuple[str, ...], **given: Any) -> int:
    """Start the collector with an embedded ClickHouse: nothing to install, data in one folder."""
    return _serve(*read_settings("up", given, config), forward)


@click.command(name="collector")
@options("collector")
@_forward
def collector_command(config: Path | None, forward: tuple[str, ...], **given: Any) -> int:
    """Start the collector for a ClickHouse server or cluster; the data folder only holds the spool."""
    default = "http://127.0.0.1:8123"
    return _serve(*read_settings("collector", given, config, clickhouse_url=default), forward)


def _serve(settings: Settings, tables: Tables, urls: tuple[str, ...]) -> int:
    to = destinations(tables, urls)
    secrets = [settings.clickhouse_password, settings.clickhouse_token]
    secrets += [value for destination in to for _, value in destination.headers]
    logs.configure(settings.log_format, settings.log_level, secrets=[secret for secret in secrets if secret])
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if not settings.is_loopback and settings.tokens_file is None and settings.tls_client_ca is None:
        click.echo(
            f"tailspan: warning: listening on {settings.host} without authentication; anyone who can reach the ports "
            "can send and read all data. Give --tokens-file or --tls-client-ca",
            err=True,
        )
    runtime = Runtime(settings, to)
    try:
        _settle_memory()
        _announce(runtime, settings)
        runtime.wait(stop)
        click.echo("tailspan: stopping, storing what was received")
    finally:
        runtime.close()
    return 0


def _settle_memory() -> None:
    """Spare the garbage collector what lives as long as the process; requests leave no cycles behind."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)


def _announce(runtime: Runtime, settings: Settings) -> None:
    endpoints = runtime.endpoints
    click.echo(f"tailspan: OTLP/gRPC   {endpoints.otlp}")
    click.echo(f"tailspan: OTLP/HTTP   {endpoints.otlp_http}")
    what = "SQL (read)" if settings.clickhouse_url is None else "ClickHouse"
    click.echo(f"tailspan: {what:<11} {endpoints.clickhouse}")
    click.echo(f"tailspan: health      {endpoints.admin}/readyz  /metrics")
    click.echo(f"tailspan: data        {endpoints.data}")
    click.echo("tailspan: ready; stop with Ctrl-C")


def up(argv: list[str]) -> int:
    """Run `tailspan up`."""
    return run_click(up_command, argv)


def collector(argv: list[str]) -> int:
    """Run `tailspan collector`."""
    return run_click(collector_command, argv)
