"""Confirmation of irreversible changes: by a prompt on a terminal, or by `--yes`."""

import sys
from typing import Annotated

import typer

from shared.cli.exits import FAILED, USAGE

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Apply the change without a prompt.")]


def confirm(question: str, *, yes: bool) -> None:
    """Return if the change is confirmed; otherwise exit with an error, so that a script stops."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        typer.echo("nothing was changed; to apply the change, repeat the command with --yes", err=True)
        raise typer.Exit(USAGE)
    if not typer.confirm(question, err=True):
        typer.echo("nothing was changed", err=True)
        raise typer.Exit(FAILED)
