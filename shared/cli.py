"""`agent-workspace`: what an operator types. Nothing slow is imported before a command needs it."""

import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer
from pydantic import SecretStr, ValidationError
from rich.console import Console
from rich.table import Table

from shared.clock import after, now
from shared.embedded_broker import become_server
from shared.errors import WorkspaceError
from shared.logs import configure_logs
from shared.settings import Settings

if TYPE_CHECKING:
    from shared.administration import Administration

NAME = "agent-workspace"
CAPABILITY = re.compile(r"[A-Z][A-Z_]{1,63}")
PORT_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
app = typer.Typer(
    help="The self-hosted control plane for software agents. `make run` does the first steps by itself.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
users = typer.Typer(help="Who may call.", no_args_is_help=True)
keys = typer.Typer(help="Users' API keys.", no_args_is_help=True)
specs = typer.Typer(help="What sandboxes are made from; the first spec is the default.", no_args_is_help=True)
nodes = typer.Typer(help="Docker Engines and the workers beside them.", no_args_is_help=True)
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
    _administration().migrate()


@app.command()
def bootstrap() -> None:
    """Make the first user, `admin`, and keep its API key in the var directory."""
    made, file = _administration().bootstrap(), Settings().admin_key_file
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
    _print_table(("variable", "value", "meaning"), rows + derived)


# --- users and keys -------------------------------------------------------------------------------------------------


@users.command("create")
def create_user(
    name: str,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Be content if there is such a user.")] = False,
) -> None:
    """Add a user."""
    made = _administration().create_user(name, exist_ok=exist_ok)
    typer.echo(f"made the user {name}" if made else f"there is a user {name} already")


@users.command("list")
def list_users() -> None:
    """Print every user, oldest first."""
    rows = [(user.id, user.name, _time(user.created_at)) for user in _administration().list_users()]
    _print_table(("id", "name", "created"), rows)


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
    key = _administration().create_key(user, name, expires_at)
    typer.echo(key)
    typer.echo(f"Keep it: it is not shown again. `{NAME} keys revoke {key[:11]}` ends it.", err=True)


@keys.command("list")
def list_keys(user: str) -> None:
    """Print a user's keys, oldest first, by the prefix that names each."""
    rows = [
        (key.prefix, key.name, *map(_time, (key.created_at, key.last_used_at, key.expires_at, key.revoked_at)))
        for key in _administration().list_keys(user)
    ]
    _print_table(("prefix", "name", "created", "last used", "expires", "revoked"), rows)


@keys.command("revoke")
def revoke_key(prefix: Annotated[str, typer.Argument(help="The key's first 11 characters, or all of it.")]) -> None:
    """Let a key open nothing any more."""
    typer.echo(f"revoked {_administration().revoke_key(prefix)} key(s)")


# --- specs and nodes ------------------------------------------------------------------------------------------------


@specs.command("list")
def list_specs() -> None:
    """Print every spec, the default first."""
    rows = [
        (
            spec.id,
            shlex.join(spec.command) if spec.command else "the image's own",
            spec.memory_bytes // 1024**2,
            spec.cpus,
            spec.pids,
            spec.working_dir,
            spec.runtime or "the engine's default",
            " ".join(f"{name}={number}" for name, number in spec.ports.items()),
            " ".join(spec.capabilities),
            " ".join(sorted(spec.env)),  # the names only: a value may be a secret
        )
        for spec in _administration().list_specs()
    ]
    limits = ("memory MB", "cpus", "pids")
    _print_table(("image", "command", *limits, "working dir", "runtime", "ports", "capabilities", "environment"), rows)


@specs.command("add")
def add_spec(
    image: Annotated[str, typer.Argument(help="A reference that the engine knows or can pull.")],
    default: Annotated[bool, typer.Option("--default", help="Make it the default.")] = False,
    command: Annotated[str | None, typer.Option(help="Instead of the image's own; quoted as in a shell.")] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="May be given several times.")] = None,
    memory_mb: Annotated[int, typer.Option(min=16, help="Memory, MB.")] = 4096,
    cpus: Annotated[float, typer.Option(min=0.01, help="Processor time, in processors.")] = 2.0,
    pids: Annotated[int, typer.Option(min=16, help="Processes and threads.")] = 2048,
    working_dir: Annotated[str, typer.Option(help="Where agents work.")] = "/workspace/project",
    runtime: Annotated[str | None, typer.Option(help="One the engine knows, such as runsc.")] = None,
    capability: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="One to add back, such as CHOWN; all are dropped. May be given several times."
        ),
    ] = None,
    port: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER",
            help="One to expose beside AGENT_SERVER=8000, or to move it. May be given several times.",
        ),
    ] = None,
) -> None:
    """Add a spec."""
    _administration().add_spec(
        image,
        default=default,
        command=shlex.split(command) if command else None,
        env=_pairs(env, "--env"),
        memory_bytes=memory_mb * 1024**2,
        cpus=cpus,
        pids=pids,
        working_dir=working_dir,
        runtime=runtime,
        capabilities=_capabilities(capability),
        ports=_ports(port),
    )
    typer.echo(f"added {image}")


@specs.command("remove")
def remove_spec(image: str) -> None:
    """Remove a spec that no sandbox was ever made from."""
    _administration().remove_spec(image)
    typer.echo(f"removed {image}")


@nodes.command("list")
def list_nodes() -> None:
    """Print every node, how full it is, and how long ago its worker was last heard of."""
    rows = [
        (node.id, node.status, used, node.capacity, _age(node.heartbeat_at), node.detail or "")
        for node, used in _administration().list_nodes()
    ]
    _print_table(("id", "status", "used", "capacity", "heartbeat", "detail"), rows)


@nodes.command("cordon")
def cordon_node(name: str) -> None:
    """Place no new sandboxes on a node; those it has stay, and can be paused, resumed and deleted."""
    _administration().cordon_node(name)
    typer.echo(f"{name} takes no new sandboxes")


@nodes.command("uncordon")
def uncordon_node(name: str) -> None:
    """Let a cordoned node take new sandboxes again."""
    _administration().uncordon_node(name)
    typer.echo(f"{name} takes new sandboxes")


# --- parts ----------------------------------------------------------------------------------------------------------


def _administration() -> "Administration":
    from shared.administration import Administration  # noqa: PLC0415 - slow to import

    return Administration(Settings())


def _pairs(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"two words with = between them are needed, not {text!r}", param_hint=option)
        pairs[key] = value
    return pairs


def _capabilities(names: Sequence[str] | None) -> list[str]:
    for name in names or ():
        if not CAPABILITY.fullmatch(name):
            raise typer.BadParameter(
                f"a name such as NET_BIND_SERVICE is needed, not {name!r}", param_hint="--capability"
            )
    return list(dict.fromkeys(names or ()))


def _ports(texts: Sequence[str] | None) -> dict[str, int]:
    ports = {"AGENT_SERVER": 8000}
    for name, number in _pairs(texts, "--port").items():
        # The name becomes a variable in the sandbox.
        if not PORT_NAME.fullmatch(name) or not number.isdecimal() or not 0 < int(number) < 65536:
            raise typer.BadParameter(f"NAME=NUMBER is needed, not '{name}={number}'", param_hint="--port")
        ports[name] = int(number)
    if len(set(ports.values())) < len(ports):
        raise typer.BadParameter("each needs a number of its own", param_hint="--port")
    return ports


def _time(at: datetime | None) -> str:
    return at.isoformat(sep=" ", timespec="seconds") if at else ""


def _age(at: datetime) -> str:
    return f"{max(0, round((now() - at).total_seconds()))} s ago"


def _masked(value: Any) -> str:
    if isinstance(value, SecretStr):
        return str(value)
    text = str(value)
    password = urlsplit(text).password if "://" in text else None
    return text.replace(f":{password}@", ":**********@") if password else text


def _print_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    lines = [[str(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for line in [list(header), *lines]:
            typer.echo("\t".join(line))
        return
    table = Table(*header, box=None, header_style="bold", pad_edge=False)
    for line in lines:
        table.add_row(*line)
    Console(markup=False).print(table)


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
