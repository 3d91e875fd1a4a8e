"""`agent-workspace users`: the commands for users."""

from typing import Annotated

import typer

from shared.cli.confirmation import Yes, confirm
from shared.cli.local.environment import installation
from shared.cli.output import print_table, showing

users = typer.Typer(help="Manage users.", no_args_is_help=True)


@users.command("create")
def create_user(
    name: str,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Succeed if the user already exists.")] = False,
) -> None:
    """Create a user. The first user of an installation is an admin."""
    from shared.users import accounts

    accounts.check_name(name)
    with installation().writing() as session:
        is_new = not exist_ok or accounts.find_user(session, name) is None
        if is_new:
            accounts.create_first_or_next(session, name)
    typer.echo(f"created user {name}" if is_new else f"user {name} already exists")


@users.command("list")
@showing
def list_users() -> None:
    """List users, oldest first, with their stored usage."""
    from shared.changes import recorder
    from shared.users import accounts

    with installation().reading() as session:
        rows = [
            (user.id, user.name, user.created_at, *recorder.read_usage(session, user.id), user.role)
            for user in accounts.list_users(session)
        ]
    print_table(("id", "name", "created", "conversations", "events", "event bytes", "role"), rows)


@users.command("grant-admin")
def grant_admin(name: str) -> None:
    """Make a user an admin. Admins view and change the sandboxes of all users at /admin."""
    from shared.users import roles

    with installation().writing() as session:
        granted = roles.grant_admin(session, name)
    typer.echo(f"{name} is an admin now" if granted else f"{name} is an admin already")


@users.command("take-admin")
def revoke_admin(name: str) -> None:
    """Remove the admin role from a user. The last admin keeps it."""
    from shared.users import roles

    with installation().writing() as session:
        taken = roles.revoke_admin(session, name)
    typer.echo(f"{name} is no longer an admin" if taken else f"{name} is not an admin")


@users.command("remove-lost-secrets")
def remove_lost_secrets(name: str, yes: Yes = False) -> None:
    """Remove a user's stored secrets that no secret key decrypts, so that the user can store them again."""
    from shared.cli.local import lost_secrets
    from shared.users import accounts

    here = installation()
    vault = here.vault()
    with here.reading() as session:
        user_id = accounts.get_user(session, name).id
        found = lost_secrets.find(session, vault, user_id)
    if not yes:
        print_table(("secret", "becomes"), [(secret, "removed") for secret in found])
    confirm(f"Remove them from what is stored for {name}?", yes=yes)
    with here.writing() as session:
        lost_secrets.remove(session, vault, user_id)
    typer.echo(f"removed {len(found)} secret(s) of {name} that could not be decrypted")
