"""What the commands of `agent-workspace` have in common: an installation to act on, and tables to answer with."""

import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from shared.clock import now
from shared.settings import Settings

if TYPE_CHECKING:
    from shared.cli.operations import Administration

NAME = "agent-workspace"


def administration() -> "Administration":
    """The installation that the environment names."""
    from shared.cli.operations import Administration  # noqa: PLC0415 - slow to import

    return Administration(Settings())


def print_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table for people, or, where nobody looks, its lines with tabs."""
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
    """A time to the second; nothing for none."""
    return at.isoformat(sep=" ", timespec="seconds") if at else ""


def age_text(at: datetime) -> str:
    """How long ago a time is."""
    return f"{max(0, round((now() - at).total_seconds()))} s ago"
