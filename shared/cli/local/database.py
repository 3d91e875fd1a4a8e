"""`agent-workspace db`: the commands for the database."""

from typing import Annotated

import typer

from shared.cli.backup.commands import back_up, restore
from shared.cli.exits import FAILED
from shared.cli.local.environment import installation
from shared.cli.output import NAME, print_details, showing
from shared.settings import Settings

database = typer.Typer(help="Migrate, check, back up and restore the database.", no_args_is_help=True)
migration = typer.Typer(add_completion=False)
Wait = Annotated[
    float,
    typer.Option(metavar="SECONDS", min=0, help="Max time to wait for a database that is not up yet. Default: 0."),
]
database.command("backup")(back_up)
database.command("restore")(restore)


@migration.command()
@database.command()
def migrate(wait: Wait = 0) -> None:
    """Create or update the database, the secret key and the first sandbox spec. Safe to repeat at any time."""
    from shared.observability.logs import configure_logs

    configure_logs(Settings(), "migrate")
    installation().migrate(wait)


@database.command()
@showing
def check() -> None:
    """Compare the database's schema with the one that this version needs. Exit with 1 if it is older."""
    schema = installation().schema()
    shown = {"schema": schema.found, "needed": schema.needed, "current": schema.is_current, "newer": schema.is_newer}
    print_details(shown)
    if schema.is_newer:
        typer.echo(
            "a newer version has migrated the database; only the version before that one works with it", err=True
        )
    elif not schema.is_current:
        typer.echo(f"the schema does not match this version: run `{NAME} db migrate`", err=True)
        raise typer.Exit(FAILED)
