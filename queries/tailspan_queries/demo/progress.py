"""Progress of the demo's phases on stderr: a bar in a terminal, one line per phase elsewhere, nothing with `--json`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Column

WIDTH = 50
"""Characters of what happens now: a server's log line may be long."""


class Progress:
    """Shows one phase after another."""

    Step: TypeAlias = Callable[[int, str], None]
    """Called with (done, what happens now)."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.console = console
        self.quiet = quiet

    @contextlib.contextmanager
    def phase(self, name: str, total: int | None = None) -> Iterator[Step]:
        """Show a phase until the block ends; `total` is None where the end is not known."""
        begin = time.monotonic()
        if self.quiet or not self.console.is_terminal:
            yield lambda _done, _text: None
        else:
            with Bars(
                SpinnerColumn(),
                TextColumn("{task.fields[phase]:<13}"),
                BarColumn(24),
                TextColumn(
                    "{task.description}",
                    markup=False,
                    table_column=Column(no_wrap=True, overflow="ellipsis", max_width=WIDTH),
                ),
                TimeElapsedColumn(),
                console=self.console,
                transient=True,
            ) as bars:
                task = bars.add_task("", total=total, phase=name)
                yield lambda done, text: bars.update(task, completed=done, description=text)
        self.note(f"{name}: done in {time.monotonic() - begin:.1f} s")

    def note(self, text: str) -> None:
        """Print one line unless quiet."""
        if not self.quiet:
            self.console.print(text, style="dim", highlight=False)
