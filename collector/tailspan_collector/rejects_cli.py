"""The command `tailspan rejects`: list, show, export and replay what ClickHouse could not store."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import click
import grpc
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from tailspan.cli import run_click
from tailspan.errors import UserError
from tailspan_collector import rejects
from tailspan_collector.database_cli import Where, database_options, opened, refusals, where
from tailspan_collector.listing import FORMATS, print_rows, size_text
from tailspan_collector.rejects import Rejected
from tailspan_collector.signals import SIGNALS
from tailspan_schemas.migrations import Database

_AGE = re.compile(r"([1-9]\d{0,6})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_MOST = 10_000
_selecting = (
    click.option("--since", metavar="AGE", help="only those of the last AGE: 30m, 2h, 7d"),
    click.option("--signal", type=click.Choice([signal.name for signal in SIGNALS]), help="only of this signal"),
)


def _selection(command: Any) -> Any:
    for option in reversed(_selecting):
        command = option(command)
    return command


@click.group("rejects")
@database_options
@click.pass_context
def rejects_command(context: click.Context, /, **given: Any) -> None:
    """Requests that were acknowledged but that ClickHouse could not store: list, show, export, replay."""
    context.obj = given


@rejects_command.command("list")
@database_options
@_selection
@click.option("-n", "--limit", type=click.IntRange(1, _MOST), default=100, show_default=True)
@click.option("--format", "form", type=click.Choice(FORMATS), default="table", show_default=True)
@click.pass_obj
def list_command(
    outer: Mapping[str, Any], /, since: str | None, signal: str | None, limit: int, form: str, **given: Any
) -> None:
    """List rejects, the newest first."""
    with opened(where(given, outer), changes=False) as database, refusals("the query"):
        found = rejects.find(database, _seconds(since), signal or "", limit)
    if not found and form == "table":
        click.echo("no rejects")
        return
    rows = [asdict(reject) for reject in found]
    if form == "table":
        for row in rows:
            row |= {"id": row["id"][:12], "size": size_text(row["size"]), "reason": _short(row["reason"])}
    columns = ("id", "rejected_at", "signal", "peer", "size", "code", "replays", "reason")
    print_rows(columns if form == "table" else tuple(Rejected.__dataclass_fields__), rows, form)


@rejects_command.command("show")
@database_options
@click.argument("reject_id", metavar="ID")
@click.pass_obj
def show_command(outer: Mapping[str, Any], /, reject_id: str, **given: Any) -> None:
    """Show all that is known of one reject, and its content as far as it can be decoded."""
    with opened(where(given, outer), changes=False) as database, refusals("the query"):
        reject = rejects.find_one(database, reject_id)
        payload = rejects.payload_of(database, reject)
    for name, value in asdict(reject).items():
        click.echo(f"{name.replace('_', ' '):<12} {value if value != '' else '-'}")
    click.echo(f"\n{_decoded(reject.signal, payload)}")


@rejects_command.command("export")
@database_options
@_selection
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="all of --since and --signal")
@click.option("--to", "folder", type=click.Path(path_type=Path, file_okay=False), required=True, help="folder")
@click.pass_obj
def export_command(
    outer: Mapping[str, Any],
    /,
    ids: tuple[str, ...],
    since: str | None,
    signal: str | None,
    everything: bool,
    folder: Path,
    **given: Any,
) -> None:
    """Write the raw requests to files ID.SIGNAL.pb (protobuf, as they were received)."""
    with opened(where(given, outer), changes=False) as database, refusals("the query"):
        chosen = _chosen(database, ids, everything, since, signal)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for reject in chosen:
                path = folder / f"{reject.id}.{reject.signal}.pb"
                path.write_bytes(rejects.payload_of(database, reject))
                click.echo(path)
        except OSError as error:
            raise UserError(f"{folder} cannot be written: {error.strerror}", "Name another folder with --to") from error


@rejects_command.command("replay")
@database_options
@_selection
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="all of --since and --signal that were not replayed")
@click.option("--again", is_flag=True, help="also those that were replayed before")
@click.option(
    "--endpoint",
    envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
    help="OTLP/gRPC of the collector  [default: that of the data folder, else http://127.0.0.1:4317]",
)
@click.option("--token", envvar="TAILSPAN_TOKEN", help="bearer token of the collector; better given by the variable")
@click.option("--ca", type=click.Path(path_type=Path, dir_okay=False), help="CA (PEM) of the collector's certificate")
@click.pass_obj
def replay_command(
    outer: Mapping[str, Any],
    /,
    ids: tuple[str, ...],
    since: str | None,
    signal: str | None,
    everything: bool,
    again: bool,
    endpoint: str | None,
    token: str | None,
    ca: Path | None,
    **given: Any,
) -> None:
    """Send rejects to the collector again, each once; what fails again becomes a new reject."""
    place = where(given, outer)
    with opened(place, changes=False) as database, refusals("the query"):
        chosen = _chosen(database, ids, everything, since, signal)
        todo = [reject for reject in chosen if again or not reject.replays]
        skipped = len(chosen) - len(todo)
        with _channel(endpoint or _default_endpoint(place), ca) as channel:
            replayer = rejects.Replayer(channel, _metadata(token), database)
            for reject in todo:
                replayer.replay(reject)
                click.echo(f"{reject.id} replayed: {reject.signal}, {size_text(reject.size)}")
    if skipped:
        click.echo(f"{skipped} were replayed before and are left out; --again sends them once more")
    click.echo(f"{len(todo)} replayed. One that fails again is a new line of: tailspan rejects list")


def _chosen(
    database: Database, ids: Sequence[str], everything: bool, since: str | None, signal: str | None
) -> list[Rejected]:
    if bool(ids) == everything:
        raise UserError("which rejects is not clear", "Name their ids, or give --all")
    if ids:
        return [rejects.find_one(database, text) for text in dict.fromkeys(ids)]
    return rejects.find(database, _seconds(since), signal or "", _MOST)[::-1]


def _seconds(age: str | None) -> int:
    if age is None:
        return 0
    found = _AGE.fullmatch(age)
    if found is None:
        raise UserError(f"--since is {age!r}", "Use a duration: 30m, 2h, 7d")
    return int(found[1]) * _SECONDS[found[2]]


def _default_endpoint(place: Where) -> str:
    return str(place.endpoints.get("otlp") or "http://127.0.0.1:4317")


def _channel(endpoint: str, ca: Path | None) -> grpc.Channel:
    parts = urlsplit(endpoint if "//" in endpoint else f"http://{endpoint}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"--endpoint {endpoint!r} is no OTLP/gRPC address", "Use http://HOST:4317 or https://HOST:4317")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    target = f"{host}:{parts.port or 4317}"
    if parts.scheme == "http":
        return grpc.insecure_channel(target)
    try:
        return grpc.secure_channel(target, grpc.ssl_channel_credentials(ca.read_bytes() if ca else None))
    except OSError as error:
        raise UserError(f"--ca {ca} cannot be read: {error.strerror}", "Give a PEM file") from error


def _metadata(token: str | None) -> list[tuple[str, str]]:
    found = []
    for pair in filter(None, os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(",")):
        name, _, value = pair.partition("=")
        found.append((name.strip().lower(), unquote(value.strip())))
    return [*found, ("authorization", f"Bearer {token}")] if token else found


def _short(reason: str) -> str:
    text = " ".join((reason.partition("DB::Exception: ")[2] or reason).split())
    return text if len(text) <= 60 else f"{text[:59]}…"


def _decoded(signal_name: str, payload: bytes) -> str:
    signal = next((item for item in SIGNALS if item.name == signal_name), None)
    if signal is not None:
        try:
            return str(signal.request.FromString(payload))
        except DecodeError as error:
            return f"not decodable: {error}\n{payload[:256].hex(' ')}{' …' if len(payload) > 256 else ''}"
    return payload[:256].hex(" ")


def rejects_main(argv: list[str]) -> int:
    """Run `tailspan rejects`."""
    return run_click(rejects_command, argv)
