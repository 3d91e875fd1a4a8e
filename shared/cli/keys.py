"""`agent-workspace keys`: an operator's commands for the keys of all users, and a user's for their own."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from shared.cli.local.environment import installation
from shared.cli.output import NAME, print_table, read_fields, showing
from shared.cli.remote import own_keys
from shared.cli.remote.service import remote
from shared.clock import after
from shared.errors import NotFound

if TYPE_CHECKING:
    from shared.models import ApiKey

DAY_SECONDS = 24 * 60 * 60
MAX_DAYS = 3650
HEADER = ("prefix", "name", "created", "last used", "expires", "revoked")
FIELDS = ("prefix", "name", "created_at", "last_used_at", "expires_at", "revoked_at")
User = Annotated[str | None, typer.Argument(help="For operators: the name of the key's user.")]
Own = Annotated[bool, typer.Option("--own", help="Manage your own keys, in the service that you are logged in to.")]
keys = typer.Typer(
    help="Manage API keys: your own with `--own` or, as an operator, any user's in the database.", no_args_is_help=True
)


@keys.command("create")
@remote
def create_key(
    name: Annotated[str, typer.Option(help="A name for the key, such as its purpose.")],
    user: User = None,
    own: Own = False,
    expires_in_days: Annotated[
        float | None, typer.Option(min=0, max=MAX_DAYS, help="Days until it expires. Default: it never expires.")
    ] = None,
) -> None:
    """Create an API key. Print only the key on standard output; it cannot be shown again."""
    expires_at = None if expires_in_days is None else after(expires_in_days * DAY_SECONDS)
    owner = _owner(user, own=own)
    key = _create(owner, name, expires_at) if owner else own_keys.create(name, expires_at)
    typer.echo(key)
    command = f"{NAME} keys revoke {key[:11]}{' --own' if own else ''}"
    typer.echo(f"Store this key now: it cannot be shown again. To revoke it: `{command}`", err=True)


@keys.command("list")
@showing
@remote
def list_keys(user: User = None, own: Own = False) -> None:
    """List a user's keys by prefix, oldest first."""
    if owner := _owner(user, own=own):
        shown = [{field: getattr(key, field) for field in ("id", *FIELDS)} for key in _list(owner)]
        print_table(HEADER, [[key[field] for field in FIELDS] for key in shown], objects=shown)
    else:
        found = own_keys.list_in_force()
        print_table(HEADER[:-1], [read_fields(key, FIELDS[:-1]) for key in found], objects=found)


@keys.command("revoke")
@remote
def revoke_key(
    prefix: Annotated[str, typer.Argument(help="The key's first 11 characters, or the whole key.")], own: Own = False
) -> None:
    """Revoke a key."""
    revoked = own_keys.revoke(prefix) if own else _revoke(prefix)
    typer.echo(f"revoked {revoked} key(s)")


def _owner(user: str | None, *, own: bool) -> str | None:
    if own == bool(user):
        raise typer.BadParameter("use either the name of a user, as an operator, or --own")
    return user


def _create(user: str, name: str, expires_at: datetime | None) -> str:
    from shared.users import accounts, api_keys

    accounts.check_name(name)
    here = installation()
    with here.writing() as session:
        return api_keys.create_key(session, here.vault(), accounts.get_user(session, user), name, expires_at)


def _list(user: str) -> "list[ApiKey]":
    from shared.users import accounts, api_keys

    with installation().reading() as session:
        return api_keys.list_keys(session, accounts.get_user(session, user))


def _revoke(prefix: str) -> int:
    from shared.users import api_keys

    with installation().writing() as session:
        revoked = api_keys.revoke_key(session, prefix)
    if revoked == 0:
        raise NotFound("key in force", prefix[: api_keys.PREFIX_LENGTH], by="prefix")
    return revoked
