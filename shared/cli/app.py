"""`agent-workspace`: the operator's command line. Commands import slow modules themselves."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from pydantic import SecretStr, ValidationError

from shared.cli.local.models import models
from shared.cli.local.nodes import nodes
from shared.cli.local.operations import installation, user_operations
from shared.cli.output import NAME, print_table, time_text
from shared.cli.local.specs import specs
from shared.clock import after
from shared.errors import WorkspaceError
from shared.observability.logs import configure_logs
from shared.queue.embedded_broker import become_server
from shared.settings import Settings

app = typer.Typer(
    help="Administer Agent Workspace. `make run` runs `migrate`, `bootstrap` and `broker` itself.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
users = typer.Typer(help="Manage users.", no_args_is_help=True)
keys = typer.Typer(help="Manage users' API keys.", no_args_is_help=True)
configuration = typer.Typer(help="Show the configuration.", no_args_is_help=True)
GROUPS = {
    "users": users,
    "keys": keys,
    "specs": specs,
    "nodes": nodes,
    "models": models,
    "settings": configuration,
}
for noun, group in GROUPS.items():
    app.add_typer(group, name=noun)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command. An error prints one line to standard error and exits with status 1."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name=NAME)
    except Exception as error:  # noqa: BLE001 - an operator gets one line, not a traceback
        sys.exit(f"{NAME}: {_error_text(error)}")


# --- the installation -----------------------------------------------------------------------------------------------


@app.command()
def migrate() -> None:
    """Create or update the database, the secret key and the first sandbox spec. Safe to repeat at any time."""
    configure_logs(Settings(), "migrate")
    installation().migrate()


@app.command()
def bootstrap() -> None:
    """Create the first user, `admin`, and store its API key in the var directory."""
    created, file = installation().bootstrap(), Settings().admin_key_file
    if created:
        typer.echo(f"created user admin; its API key is in {file}")
    elif file.exists():
        typer.echo(f"nothing to do: a user exists; admin's API key is in {file}")
    else:
        typer.echo(
            f"nothing to do: a user exists, but {file} does not; `{NAME} users list` lists the users, "
            f"`{NAME} keys create USER --name NAME` creates another key"
        )


@app.command()
def broker() -> None:
    """Run the embedded broker: a Redis or Valkey server on a socket in the var directory."""
    become_server(Settings())


@configuration.command("show")
def show_settings() -> None:
    """Print every variable with its current value and its meaning. Secrets are masked."""
    settings = Settings()
    fields = type(settings).model_fields
    rows = [(f"AW_{name}".upper(), _masked(getattr(settings, name)), fields[name].description or "") for name in fields]
    derived = [
        ("database", _masked(settings.database), "The database in use"),
        ("broker", _masked(settings.broker), "The broker in use"),
        ("web", settings.public_url, "The service's URL for its users"),
        ("api", settings.api_url, "The API's URL for the doors of nodes"),
    ]
    print_table(("variable", "value", "meaning"), rows + derived)


# --- users and keys -------------------------------------------------------------------------------------------------


@users.command("create")
def create_user(
    name: str,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Succeed if the user already exists.")] = False,
) -> None:
    """Create a user."""
    created = user_operations().create_user(name, exist_ok=exist_ok)
    typer.echo(f"created user {name}" if created else f"user {name} already exists")


@users.command("list")
def list_users() -> None:
    """List users, oldest first, and what is stored for them."""
    rows = [
        (user.id, user.name, time_text(user.created_at), *stored) for user, stored in user_operations().list_users()
    ]
    print_table(("id", "name", "created", "conversations", "events", "event bytes"), rows)


@keys.command("create")
def create_key(
    user: str,
    name: Annotated[str, typer.Option(help="A name for the key, such as its purpose.")],
    expires_in_days: Annotated[
        float | None, typer.Option(min=0, help="Days until it expires. Default: it never expires.")
    ] = None,
) -> None:
    """Create an API key. Print only the key on standard output; it cannot be shown again."""
    expires_at = None if expires_in_days is None else after(expires_in_days * 24 * 60 * 60)
    key = user_operations().create_key(user, name, expires_at)
    typer.echo(key)
    typer.echo(f"Store this key now: it cannot be shown again. To revoke it: `{NAME} keys revoke {key[:11]}`", err=True)


@keys.command("list")
def list_keys(user: str) -> None:
    """List a user's keys by prefix, oldest first."""
    rows = [
        (key.prefix, key.name, *map(time_text, (key.created_at, key.last_used_at, key.expires_at, key.revoked_at)))
        for key in user_operations().list_keys(user)
    ]
    print_table(("prefix", "name", "created", "last used", "expires", "revoked"), rows)


@keys.command("revoke")
def revoke_key(prefix: Annotated[str, typer.Argument(help="The key's first 11 characters, or the whole key.")]) -> None:
    """Revoke a key."""
    typer.echo(f"revoked {user_operations().revoke_key(prefix)} key(s)")


# --- helpers --------------------------------------------------------------------------------------------------------


def _masked(value: Any) -> str:
    if isinstance(value, SecretStr):
        return str(value)
    text = str(value)
    password = urlsplit(text).password if "://" in text else None
    return text.replace(f":{password}@", ":**********@") if password else text


def _error_text(error: Exception) -> str:
    if isinstance(error, ValidationError):
        # Pydantic's text quotes the values, and a value may be a secret.
        return "; ".join(f"{_variable(entry['loc'])}: {entry['msg']}" for entry in error.errors())
    cause = getattr(error, "orig", None) or error  # SQLAlchemy adds the statement and its parameters
    text = " ".join(str(cause).split()) or type(cause).__name__
    if "no such table" in text or ("relation" in text and "does not exist" in text):
        return f"the database schema is missing or outdated: run `{NAME} migrate`"
    expected = cause is not error or isinstance(error, WorkspaceError | OSError | ValueError)
    return text if expected else f"{type(error).__name__}: {text}"


def _variable(location: Sequence[int | str]) -> str:
    name = str(location[0]) if location else "AW"
    return name.upper() if name.lower().startswith("aw") else f"AW_{name}".upper()
