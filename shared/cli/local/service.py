"""Commands that show the configuration in force, and those that `make run` calls before and beside its processes."""

import re
from typing import Any

import typer
from pydantic import SecretStr

from shared.cli.local.environment import installation
from shared.cli.output import NAME, print_table, showing
from shared.settings import Settings
from shared.users.mcp_config import MASK, mask_url

# The credentials in a URL. Drivers accept any character in a password, even those that must be escaped in a URL.
CREDENTIALS = re.compile(r"(?<=://)\S+(?=@)")
configuration = typer.Typer(help="Show the configuration.")
first_user = typer.Typer(add_completion=False)
embedded = typer.Typer(add_completion=False)


@configuration.callback(no_args_is_help=True)
def _group() -> None:
    pass


@configuration.command("show")
@showing
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


@first_user.command()
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


@embedded.command()
def broker() -> None:
    """Run the embedded broker: a Redis or Valkey server on a socket in the var directory."""
    from shared.queue.embedded_broker import become_server

    become_server(Settings())


def _masked(value: Any) -> str:
    if isinstance(value, SecretStr):
        return str(value)
    return mask_url(CREDENTIALS.sub(MASK, str(value)))
