"""`agent-workspace users`: the commands for users."""

from typing import Annotated

import typer

from shared.cli.local.operations import user_operations
from shared.cli.output import print_table, showing

users = typer.Typer(help="Manage users.", no_args_is_help=True)


@users.command("create")
def create_user(
    name: str,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Succeed if the user already exists.")] = False,
) -> None:
    """Create a user."""
    created = user_operations().create_user(name, exist_ok=exist_ok)
    typer.echo(f"created user {name}" if created else f"user {name} already exists")


@users.command("list")
@showing
def list_users() -> None:
    """List users, oldest first, and what is stored for them."""
    rows = [(user.id, user.name, user.created_at, *stored) for user, stored in user_operations().list_users()]
    print_table(("id", "name", "created", "conversations", "events", "event bytes"), rows)
