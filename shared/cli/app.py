"""`agent-workspace`: what an operator types. Nothing slow is imported before a command needs it."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from pydantic import SecretStr, ValidationError

from shared.cli.nodes import nodes
from shared.cli.output import NAME, administration, print_table, time_text
from shared.cli.specs import specs
from shared.clock import after
from shared.errors import WorkspaceError
from shared.observability.logs import configure_logs
from shared.queue.embedded_broker import become_server
from shared.settings import Settings

app = typer.Typer(
    help="The self-hosted control plane for software agents. `make run` does the first steps by itself.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
users = typer.Typer(help="Who may call.", no_args_is_help=True)
keys = typer.Typer(help="Users' API keys.", no_args_is_help=True)
configuration = typer.Typer(help="The configuration in force.", no_args_is_help=True)
for group, noun in ((users, "users"), (keys, "keys"), (specs, "specs"), (nodes, "nodes"), (configuration, "settings")):
    app.add_typer(group, name=noun)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; an error is one line on standard error, and exit status 1."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name=NAME)
    except Exception as error:  # noqa: BLE001 - a traceback is no answer to an operator
        sys.exit(f"{NAME}: {_complaint(error)}")


# --- the installation -----------------------------------------------------------------------------------------------


@app.command()
def migrate() -> None:
    """Make or update the database, the secret key and the first sandbox spec. Safe to repeat, and at any time."""
    configure_logs(Settings(), "migrate")
    administration().migrate()


@app.command()
def bootstrap() -> None:
    """Make the first user, `admin`, and keep its API key in the var directory."""
    made, file = administration().bootstrap(), Settings().admin_key_file
    if made:
        typer.echo(f"made the user admin; its API key is in {file}")
    elif file.exists():
        typer.echo(f"nothing to do: there is a user already; admin's API key is in {file}")
    else:
        typer.echo(
            f"nothing to do: there is a user already, but no {file}; `{NAME} users list` shows the users, "
            f"`{NAME} keys create USER --name NAME` makes another key"
        )


@app.command()
def broker() -> None:
    """Become the embedded broker: a Redis or Valkey server on a socket in the var directory."""
    become_server(Settings())


@configuration.command("show")
def show_settings() -> None:
    """Print every variable with its value in force and its meaning; secrets are masked."""
    settings = Settings()
    fields = type(settings).model_fields
    rows = [(f"AW_{name}".upper(), _masked(getattr(settings, name)), fields[name].description or "") for name in fields]
    derived = [
        ("database", _masked(settings.database), "The database in force"),
        ("broker", _masked(settings.broker), "The broker in force"),
        ("web", settings.public_url, "The service's URL in force, for people"),
        ("webhooks", settings.webhook_url, "Where agent servers report"),
    ]
    print_table(("variable", "value", "meaning"), rows + derived)


# --- users and keys -------------------------------------------------------------------------------------------------


@users.command("create")
def create_user(
    name: str,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Be content if there is such a user.")] = False,
) -> None:
    """Add a user."""
    made = administration().create_user(name, exist_ok=exist_ok)
    typer.echo(f"made the user {name}" if made else f"there is a user {name} already")


@users.command("list")
def list_users() -> None:
    """Print every user, oldest first."""
    rows = [(user.id, user.name, time_text(user.created_at)) for user in administration().list_users()]
    print_table(("id", "name", "created"), rows)


@keys.command("create")
def create_key(
    user: str,
    name: Annotated[str, typer.Option(help="What the key is for.")],
    expires_in_days: Annotated[
        float | None, typer.Option(min=0, help="Days it is good for; for ever if left out.")
    ] = None,
) -> None:
    """Print a new API key, and nothing else, on standard output. It can't be shown again."""
    expires_at = None if expires_in_days is None else after(expires_in_days * 24 * 60 * 60)
    key = administration().create_key(user, name, expires_at)
    typer.echo(key)
    typer.echo(f"Keep it: it is not shown again. `{NAME} keys revoke {key[:11]}` ends it.", err=True)


@keys.command("list")
def list_keys(user: str) -> None:
    """Print a user's keys, oldest first, by the prefix that names each."""
    rows = [
        (key.prefix, key.name, *map(time_text, (key.created_at, key.last_used_at, key.expires_at, key.revoked_at)))
        for key in administration().list_keys(user)
    ]
    print_table(("prefix", "name", "created", "last used", "expires", "revoked"), rows)


@keys.command("revoke")
def revoke_key(prefix: Annotated[str, typer.Argument(help="The key's first 11 characters, or all of it.")]) -> None:
    """Let a key open nothing any more."""
    typer.echo(f"revoked {administration().revoke_key(prefix)} key(s)")


# --- parts ----------------------------------------------------------------------------------------------------------


def _masked(value: Any) -> str:
    if isinstance(value, SecretStr):
        return str(value)
    text = str(value)
    password = urlsplit(text).password if "://" in text else None
    return text.replace(f":{password}@", ":**********@") if password else text


def _complaint(error: Exception) -> str:
    if isinstance(error, ValidationError):
        # Pydantic's own text repeats the values, and one of them may be a secret.
        return "; ".join(f"{_variable(entry['loc'])}: {entry['msg']}" for entry in error.errors())
    cause = getattr(error, "orig", None) or error  # SQLAlchemy adds the statement and its parameters
    text = " ".join(str(cause).split()) or type(cause).__name__
    if "no such table" in text or ("relation" in text and "does not exist" in text):
        return f"the database has no tables, or old ones: run `{NAME} migrate`"
    expected = cause is not error or isinstance(error, WorkspaceError | OSError | ValueError)
    return text if expected else f"{type(error).__name__}: {text}"


def _variable(location: Sequence[int | str]) -> str:
    name = str(location[0]) if location else "AW"
    return name.upper() if name.lower().startswith("aw") else f"AW_{name}".upper()
