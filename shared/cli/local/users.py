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
    """Create a user. The first user of an installation is an admin."""
    created = user_operations().create_user(name, exist_ok=exist_ok)
    typer.echo(f"created user {name}" if created else f"user {name} already exists")


@users.command("list")
@showing
def list_users() -> None:
    """List users, oldest first, and what is stored for them."""
    rows = [
        (user.id, user.name, user.created_at, *stored, user.role) for user, stored in user_operations().list_users()
    ]
    print_table(("id", "name", "created", "conversations", "events", "event bytes", "role"), rows)


@users.command("grant-admin")
def grant_admin(name: str) -> None:
    """Make a user an admin, who sees and changes what all users have at /admin."""
    granted = user_operations().grant_admin(name)
    typer.echo(f"{name} is an admin now" if granted else f"{name} is an admin already")


@users.command("take-admin")
def take_admin(name: str) -> None:
    """Make an admin a user like the others. The last admin stays."""
    taken = user_operations().take_admin(name)
    typer.echo(f"{name} is no admin any more" if taken else f"{name} is no admin")
