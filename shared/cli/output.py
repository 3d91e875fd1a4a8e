"""The output that all commands of `agent-workspace` share: tables and times."""

import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from shared.clock import now

NAME = "agent-workspace"


def print_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table to a terminal, and tab-separated lines to anything else."""
    lines = [[str(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for line in [list(header), *lines]:
            typer.echo("\t".join(line))
        return
    table = Table(*header, box=None, header_style="bold", pad_edge=False)
    for line in lines:
        table.add_row(*line)
    Console(markup=False).print(table)


def time_text(at: datetime | None) -> str:
    """A time to the second; empty for None."""
    return at.isoformat(sep=" ", timespec="seconds") if at else ""


def age_text(at: datetime) -> str:
    """The time elapsed since `at`."""
    return f"{max(0, round((now() - at).total_seconds()))} s ago"
