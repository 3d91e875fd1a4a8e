"""`nodes invite`, which prints the shared settings, and `nodes join`, which makes another machine a node."""

import shlex
import sys
from io import StringIO
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from dotenv import dotenv_values

from shared.cli.service.processes import run_processes
from shared.errors import Conflict, Invalid, Unavailable
from shared.private_files import create_file
from shared.settings import Settings

# The settings that all machines of a service share, and the variables that each invitation contains.
SHARED = (
    "database_url",
    "redis_url",
    "network_isolation",
    "sandbox_addresses",
    "model_servers",
    "git_hosts",
    "door_ca",
    # Otherwise a node builds the image of the default, which no spec names.
    "default_sandbox_image",
    # The pages that agent servers accept requests from.
    "web_url",
    "cors_origins",
)
REQUIRED = ("AW_DATABASE_URL", "AW_REDIS_URL", "AW_SECRET_KEYS", "AW_SANDBOX_API_URL")
NAMES = {*REQUIRED, *(f"AW_{name.upper()}" for name in SHARED)}
ENVIRONMENT = Path("var/env")
# As AW_NODE allows it.
MAX_NAME = 64
# A node runs neither the API nor Flower, but a worker, its door, and the engine filter.
NODE_ONLY = ("web=0", "flower=0")
LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
CONNECT_SECONDS = 5


def invite() -> None:
    """Print the settings with which another machine joins. They contain the secret key: pass them on over SSH."""
    typer.echo(write_invitation(Settings()), nl=False)


def join(
    address: Annotated[str, typer.Argument(help="Address of this machine that the API reaches.")],
    name: Annotated[str | None, typer.Option(help="Name of the node. Default: this machine's.")] = None,
    start: Annotated[bool, typer.Option(help="Start the node's processes in the foreground.")] = True,
) -> None:
    """Make this machine a node: read an invitation from standard input, keep it in var/env, and run the node."""
    settings = read_invitation(sys.stdin.read())
    settings["AW_NODE_ADDRESS"] = _checked_address(address)
    if name:
        settings["AW_NODE"] = _checked_name(name)
    check_connections(settings)
    ENVIRONMENT.parent.mkdir(mode=0o700, exist_ok=True)
    if ENVIRONMENT.exists():
        raise Conflict(f"{ENVIRONMENT} exists already: join in an empty folder")
    create_file(ENVIRONMENT, _as_text(settings).rstrip())
    typer.echo(f"the settings are in {ENVIRONMENT.absolute()}", err=True)
    if start:
        run_processes(NODE_ONLY)


def write_invitation(settings: Settings) -> str:
    """The settings that another machine needs, as lines of an environment file.

    Raises:
        Invalid: another machine would not reach the database, the broker or the API by these settings; or there is no
            secret key.
    """
    from shared.backup.keys import read_keys

    api = settings.sandbox_api_url or settings.api_url
    _require_reachable("AW_DATABASE_URL", settings.database_url, "SQLite is a file of this machine")
    _require_reachable("AW_REDIS_URL", settings.redis_url, "the embedded broker is a socket of this machine")
    _require_reachable("AW_SANDBOX_API_URL", api, "the API listens on this machine only")
    found = {f"AW_{name.upper()}": getattr(settings, name) for name in SHARED if name in settings.model_fields_set}
    found |= {"AW_SECRET_KEYS": ",".join(read_keys(settings)), "AW_SANDBOX_API_URL": api}
    found["AW_WEB_URL"] = settings.public_url  # by default from AW_HOST, which differs on each machine
    return _as_text({name: str(value) for name, value in found.items() if value is not None})


def read_invitation(text: str) -> dict[str, str]:
    """The settings of an invitation.

    Raises:
        Invalid: a setting is missing, or is one that an invitation may not set.
    """
    found = {name: value or "" for name, value in dotenv_values(stream=StringIO(text), interpolate=False).items()}
    if missing := [name for name in REQUIRED if not found.get(name)]:
        raise Invalid(f"this is not an invitation: {', '.join(missing)} missing. Print one with `nodes invite`")
    if unknown := sorted(set(found) - NAMES):
        raise Invalid(f"an invitation may not set {unknown[0][:64]}")
    return found


def check_connections(settings: dict[str, str]) -> None:
    """Connect to the database and the broker.

    Raises:
        Unavailable: one of them does not respond to this machine.
    """
    values: dict[str, Any] = {name.removeprefix("AW_").lower(): value for name, value in settings.items()}
    own = Settings(**values)
    for what, url, connect in (
        ("database", own.database, _connect_to_database),
        ("broker", own.broker, _connect_to_broker),
    ):
        try:
            connect(url)
        except Exception as error:  # noqa: BLE001 - of a driver, a socket or TLS
            raise Unavailable(
                f"the {what} at {_address(url)} cannot be used from this machine: {_first_line(error)}"
            ) from None


def _connect_to_database(url: str) -> None:
    from shared.db.database import Database
    from shared.nodes.registry import list_nodes

    database = Database(url, pool_size=1)
    try:
        with database.reading() as session:
            list_nodes(session)
    finally:
        database.close()


def _connect_to_broker(url: str) -> None:
    from kombu import Connection

    with Connection(url, connect_timeout=CONNECT_SECONDS) as connection:
        connection.ensure_connection(max_retries=1, timeout=CONNECT_SECONDS)


def _require_reachable(name: str, url: str, otherwise: str) -> None:
    if not url or url.startswith("sqlite"):
        raise Invalid(f"{name} is not set, and {otherwise}: set one that all machines reach")
    if _find_host(url)[0] in LOOPBACK:
        raise Invalid(
            f"{name} names an address of this machine only ({_address(url)}): set one that all machines reach"
        )


def _checked_address(address: str) -> str:
    try:
        found = ip_address(address)
    except ValueError:
        raise Invalid(f"{address[:64]!r} is not an IP address") from None
    if found.is_unspecified or found.is_loopback:
        raise Invalid(f"{address} is not reachable from another machine")
    return str(found)


def _checked_name(name: str) -> str:
    if len(name) > MAX_NAME:
        raise Invalid(f"the name of a node has at most {MAX_NAME} characters")
    return name


def _as_text(settings: dict[str, str]) -> str:
    return "".join(f"{name}={_quoted(value)}\n" for name, value in settings.items())


def _quoted(value: str) -> str:
    """A value in the syntax of environment files, which differs from a shell's."""
    if shlex.quote(value) == value:
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _address(url: str) -> str:
    host, port = _find_host(url)
    return f"{host}:{port}" if port else host


def _find_host(url: str) -> tuple[str, int | None]:
    from shared.db.waiting import find_host

    if url.startswith("postgres"):
        host, port = find_host(url)
    else:
        host, port = urlsplit(url).hostname or "", urlsplit(url).port
    return host or LOOPBACK[0], port


def _first_line(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).strip().partition("\n")[0][:200]
