"""The command `tailspan migrate`: which schema files a database needs, their SQL, and applying them.

Exit codes: 0, also with files pending; 2 for a database that cannot be used; 3 with --check if files are pending.
"""

from __future__ import annotations

from typing import Any

import click

from tailspan.cli import run_click
from tailspan.errors import UserError
from tailspan_collector.database_cli import database_options, opened, refusals, where
from tailspan_schemas import migrations
from tailspan_schemas.migrations import Migration

PENDING = 3


@click.command(name="migrate")
@database_options
@click.option("--plan", "show_sql", is_flag=True, help="print the SQL that --apply would run, and run nothing")
@click.option("--all", "from_nothing", is_flag=True, help="with --plan: the whole schema, without asking a database")
@click.option("--apply", "apply_pending", is_flag=True, help="apply what is pending; without it, only show")
@click.option("--check", is_flag=True, help=f"exit with {PENDING} if anything is pending")
def migrate_command(show_sql: bool, from_nothing: bool, apply_pending: bool, check: bool, **given: Any) -> int:
    """Show which schema migrations are applied and pending, print their SQL, or apply them."""
    if apply_pending and (show_sql or check):
        raise UserError("--apply is given beside --plan or --check", "Give one of them")
    if from_nothing and not show_sql:
        raise UserError("--all is given without --plan", "Add --plan")
    place = where(given)
    known = migrations.load()
    if from_nothing:
        _print_sql(known, known, place.cluster)
        return 0
    with opened(place, changes=apply_pending, creates=True) as database:
        plan = migrations.plan(database, known, place.cluster)
        if show_sql:
            _print_sql(known, plan.pending, place.cluster)
        else:
            _print_states(plan.applied, "applied")
            if apply_pending:
                with refusals("a statement"):
                    migrations.apply(database, known, place.cluster)
            _print_states(plan.pending, "applied now" if apply_pending else "pending")
    if plan.pending and not apply_pending and not show_sql:
        click.echo(f"{len(plan.pending)} pending. Apply them with: tailspan migrate --apply")
    return PENDING if check and plan.pending else 0


def _print_states(items: tuple[Migration, ...], state: str) -> None:
    for item in items:
        click.echo(f"{item.version:04}  {item.name:<38} {state}")


def _print_sql(known: tuple[Migration, ...], wanted: tuple[Migration, ...], cluster: str) -> None:
    """Print a script; --apply also notes each file in tailspan.migrations, which belongs to the script too."""
    runs = migrations.statements(known, cluster)
    for item in wanted:
        click.echo(f"-- {item.version:04} {item.name}")
        for statement in runs[item.version]:
            click.echo(f"{statement.strip()};\n")
    for item in wanted:
        click.echo(f"{migrations.record(item)};")


def migrate(argv: list[str]) -> int:
    """Run `tailspan migrate`."""
    return run_click(migrate_command, argv)
