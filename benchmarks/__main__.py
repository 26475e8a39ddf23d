"""Run the benchmarks: `python -m benchmarks [--only NAME]`.

A benchmark is a file `bench_NAME.py` in this folder with a function `run() -> list[Result]`; the file's name is all the
registration there is. For each one a table for people is printed, and at the very end one JSON object per row.
Exit code: 0 if every goal holds, 1 if one does not, 2 for an unknown name.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.result import Result

FOLDER = Path(__file__).parent
PREFIX = "bench_"


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; return the exit code."""
    known = names()
    parser = argparse.ArgumentParser(prog="make bench", description="measure what the documentation claims")
    parser.add_argument("--only", metavar="NAME", help=f"one of: {', '.join(known)}")
    only = parser.parse_args(arguments).only
    if only is not None and only not in known:
        print(
            f"make bench: error: there is no benchmark {only!r}. Use ONLY= one of: {', '.join(known)}", file=sys.stderr
        )
        return 2
    console = Console()
    results: list[Result] = []
    for name in known if only is None else [only]:
        console.print(f"[bold]{name}[/] …")
        rows = load(name)
        console.print(table(name, rows))
        results += rows
    for result in results:
        print(result.to_json())
    return 0 if all(result.holds for result in results) else 1


def names(folder: Path = FOLDER) -> list[str]:
    """Return the names of all benchmarks, in alphabetical order."""
    return sorted(path.stem.removeprefix(PREFIX) for path in folder.glob(f"{PREFIX}*.py"))


def load(name: str) -> list[Result]:
    """Import one benchmark and run it."""
    rows: list[Result] = importlib.import_module(f"benchmarks.{PREFIX}{name}").run()
    return rows


def table(name: str, rows: list[Result]) -> Table:
    """Draw the rows for people."""
    drawn = Table("what", "value", "goal", "peer", "holds", title=name, title_justify="left")
    for row in rows:
        sign = "≥" if row.higher_is_better else "≤"
        peer = f"{row.peer}: {row.peer_value:.4g} {row.unit}" if row.peer and row.peer_value is not None else "-"
        verdict = "[green]yes[/]" if row.holds else "[red]no[/]"
        drawn.add_row(row.name, f"{row.value:.4g} {row.unit}", f"{sign} {row.goal:.4g} {row.unit}", peer, verdict)
    return drawn


if __name__ == "__main__":
    sys.exit(main())
