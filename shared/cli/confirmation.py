"""Changes that cannot be undone: a person confirms them on a terminal, and a script with `--yes`."""

import sys
from typing import Annotated

import typer

from shared.cli.exits import FAILED, USAGE

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Apply the change without asking.")]


def confirm(question: str, *, yes: bool) -> None:
    """Return if the change is confirmed; otherwise end the command with an error, so that a script goes no further."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        typer.echo("nothing was changed; to apply the change, repeat the command with --yes", err=True)
        raise typer.Exit(USAGE)
    if not typer.confirm(question, err=True):
        typer.echo("nothing was changed", err=True)
        raise typer.Exit(FAILED)
