"""The command `tailspan retention`: how long data are kept. Nothing is ever deleted before somebody says so here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeVar

import click

from tailspan.cli import run_click
from tailspan.errors import UserError
from tailspan_collector.database_cli import database_options, opened, refusals, where
from tailspan_collector.listing import FORMATS, print_rows, size_text
from tailspan_schemas import retention
from tailspan_schemas.migrations import Database
from tailspan_schemas.retention import GROUPS, Kept, Rule

_UNITS = {"d": 1, "w": 7, "y": 365}
_SIGN = re.compile(r"([1-9]\d{0,4})([dwy])")
C = TypeVar("C", bound=Callable[..., Any])


def days(text: str, flag: str) -> int:
    """Read a duration of whole days: 30d, 4w, 1y.

    Raises:
        UserError: it is none.
    """
    found = _SIGN.fullmatch(text)
    if found is None:
        raise UserError(f"{flag} is {text!r}", "Use whole days, weeks or years: 30d, 4w, 1y")
    return int(found[1]) * _UNITS[found[2]]


def _group_options(**attributes: Any) -> Callable[[C], C]:
    def add(command: C) -> C:
        for group in reversed(GROUPS):
            command = click.option(f"--{group}", **attributes)(command)
        return command

    return add


@click.group("retention", invoke_without_command=True)
@database_options
@click.option("--format", "form", type=click.Choice(FORMATS), default="table", show_default=True)
@click.pass_context
def retention_command(context: click.Context, /, form: str, **given: Any) -> None:
    """Show how long data are kept, what there is, and change it with `set` and `off`."""
    context.obj = given
    if context.invoked_subcommand is None:
        with opened(where(given), changes=False) as database:
            _print(retention.show(database), form)


@retention_command.command("set")
@database_options
@_group_options(metavar="AGE", help="keep this long: 30d, 4w, 1y")
@click.option("--move-after", metavar="AGE", help="move older rows to --volume (of spans, unless tables are named)")
@click.option("--volume", help="volume of the storage policy that takes older rows")
@click.option("--policy", default="", help="give the tables this storage policy, which must have their present disks")
@click.pass_obj
def set_command(
    outer: Mapping[str, Any], /, move_after: str | None, volume: str | None, policy: str, **given: Any
) -> None:
    """Delete rows of a table once they are older than AGE, or move them to other storage."""
    chosen = {group: days(given[group], f"--{group}") for group in GROUPS if given[group]}
    move = days(move_after, "--move-after") if move_after else None
    if bool(move_after) != bool(volume):
        raise UserError("--move-after and --volume belong together", "Give both")
    if not chosen and move is None:
        raise UserError("nothing to set", "Name a table, for example --spans 30d")
    for group, keep in chosen.items():
        if move is not None and keep <= move:
            raise UserError(f"--{group} deletes what moves only after {move} d", "Move earlier or keep longer")
    for name, value in (("--volume", volume or ""), ("--policy", policy)):
        if not re.fullmatch(r"[\w.-]*", value):
            raise UserError(f"{name} is {value!r}", "Use a name from system.storage_policies")
    wanted = set(chosen) or {"spans"}
    with opened(where(given, outer), changes=True) as database:
        _check_storage(database, volume, policy, wanted)
        changes = []
        for kept in retention.show(database):
            if kept.group in wanted:
                rule = Rule() if kept.rule.other else kept.rule
                rule = replace(rule, delete_days=chosen.get(kept.group, rule.delete_days))
                changes.append((kept, replace(rule, move_days=move, volume=volume or "") if move else rule))
        _change(database, changes, policy)


@retention_command.command("off")
@database_options
@_group_options(is_flag=True, help="keep for ever")
@click.pass_obj
def off_command(outer: Mapping[str, Any], /, **given: Any) -> None:
    """Keep everything for ever again; without a table named, in all of them. What moved stays where it is."""
    wanted = {group for group in GROUPS if given[group]} or set(GROUPS)
    with opened(where(given, outer), changes=True) as database:
        found = [kept for kept in retention.show(database) if kept.group in wanted]
        _change(database, [(kept, Rule()) for kept in found], "")


def _check_storage(database: Database, volume: str | None, policy: str, wanted: set[str]) -> None:
    known = retention.volumes(database)
    if policy and policy not in known:
        raise UserError(f"there is no storage policy {policy!r}", f"Use one of: {', '.join(known)}, or add it")
    for kept in retention.show(database):
        used = policy or kept.policy
        if kept.group in wanted and volume and volume not in known.get(used, []):
            raise UserError(
                f"the storage policy {used!r} of {kept.table} has no volume {volume!r}",
                f"Name another with --policy; there are: {_policies(known)}",
            )


def _policies(known: Mapping[str, list[str]]) -> str:
    return "; ".join(f"{policy} ({', '.join(names)})" for policy, names in known.items())


def _change(database: Database, changes: list[tuple[Kept, Rule]], policy: str) -> None:
    if not changes:
        raise UserError("the database has none of these tables", "Create them with: tailspan migrate --apply")
    with refusals("the change"):
        retention.change(database, changes, policy)
    for kept, rule in changes:
        click.echo(f"{kept.table}: {_rule_text(rule)} (was: {_rule_text(kept.rule)})")


def _rule_text(rule: Rule) -> str:
    if rule.other:
        return f"TTL {rule.other}"
    keep = "kept for ever" if rule.delete_days is None else f"deleted after {rule.delete_days} d"
    return keep if rule.move_days is None else f"{keep}, moved to {rule.volume} after {rule.move_days} d"


def _print(found: list[Kept], form: str) -> None:
    rows: list[dict[str, Any]] = []
    for kept in found:
        size = kept.bytes if form != "table" else size_text(kept.bytes)
        values = asdict(kept) | {"rule": _rule_text(kept.rule), "size": size}
        rows.append(values | {"delete_days": kept.rule.delete_days, "move_days": kept.rule.move_days})
    print_rows(("group", "table", "rule", "oldest", "rows", "size"), rows, form)


def retention_main(argv: list[str]) -> int:
    """Run `tailspan retention`."""
    return run_click(retention_command, argv)
