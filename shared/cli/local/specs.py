"""`agent-workspace specs`: the commands for sandbox specs."""

import re
import shlex
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from shared.cli.confirmation import Yes, confirm
from shared.cli.local.environment import installation
from shared.cli.local.pooled_spec import PooledSpec
from shared.cli.local.quantities import parse_duration, parse_size
from shared.cli.output import print_details, print_table, showing
from shared.errors import Invalid
from shared.json_documents import storable

CAPABILITY = re.compile(r"[A-Z][A-Z_]{1,63}")
PORT_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
PORT = "expected NAME=NUMBER, such as VSCODE=8001: capital letters, digits and _, and a number from 1 to 65535"
# More than any machine has. The last one is the max number of processes on Linux.
MAX_MEMORY_MB, MAX_CPUS, MAX_PIDS = 16 * 1024**2, 4096, 4 * 1024**2
Default = Annotated[bool, typer.Option("--default", help="Make this spec the default.")]
FreezeAfter = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Pause sandboxes after this inactive time: 90s, 30m, 12h, 7d or never."),
]
StopAfter = Annotated[
    str | None, typer.Option(metavar="TIME", help="Stop paused sandboxes after this time, and free their memory.")
]
DeleteAfter = Annotated[
    str | None, typer.Option(metavar="TIME", help="Delete stopped or failed sandboxes after this time.")
]
MaxAge = Annotated[
    str | None, typer.Option(metavar="TIME", help="Delete sandboxes of this age, whether active or not.")
]
Warm = Annotated[
    int | None, typer.Option(min=0, max=1000, help="Number of warm sandboxes: booted, ready to be claimed.")
]
WarmMax = Annotated[
    int | None,
    typer.Option(
        "--warm-max",
        "--warm-most",
        min=0,
        max=1000,
        help="Max warm sandboxes, including booting ones. Default: --warm plus one. --warm-most is the former name.",
    ),
]
Disk = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Size of a sandbox's disk: 500M, 20G, 1T, or 0 for no limit.")
]
Wake = Annotated[
    bool | None, typer.Option("--wake/--no-wake", help="Resume a paused sandbox when a proxied request arrives.")
]
Egress = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        help="What sandboxes reach outside their node: none, or open (public addresses), IPv4 networks or both, or "
        "networks and host names (pypi.org, *.pypi.org, git.example.org:8443), comma-separated. Applies to running "
        "sandboxes, too.",
    ),
]
specs = typer.Typer(help="Manage sandbox specs. The first spec is the default.", no_args_is_help=True)


# The columns that fit on a terminal. `specs show` prints the others, too.
ON_TERMINAL = ("image", "memory MB", "cpus", "disk", "warm", "egress")


@specs.command("list")
@showing
def list_specs() -> None:
    """List specs, the default first, with the ready and the booting sandboxes of their warm pools."""
    from shared.sandboxes import specs as stored
    from shared.warm_pool import pool

    with installation().reading() as session:
        pools = pool.count(session)
        found = [PooledSpec(spec, *pools.get(spec.id, (0, 0))) for spec in stored.list_specs(session)]
    details = [spec.details for spec in found]
    header = tuple(details[0]) if details else ("image",)
    print_table(header, [spec.values() for spec in details], ON_TERMINAL, [spec.document for spec in found])


@specs.command("show")
@showing
def show_spec(image: str) -> None:
    """Show one spec."""
    from shared.sandboxes import specs as stored
    from shared.warm_pool import pool

    with installation().reading() as session:
        found = PooledSpec(stored.get_spec(session, image), *pool.count(session).get(image, (0, 0)))
    print_details(found.details, found.document)


@specs.command("add")
def add_spec(
    image: Annotated[str, typer.Argument(help="An image that the engine has or can pull.")],
    default: Default = False,
    command: Annotated[str | None, typer.Option(help="Command in place of the image's own, in shell quoting.")] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="An environment variable. Repeatable.")
    ] = None,
    memory_mb: Annotated[int, typer.Option(min=16, max=MAX_MEMORY_MB, help="Memory limit, MB.")] = 4096,
    cpus: Annotated[float, typer.Option(min=0.01, max=MAX_CPUS, help="CPU limit, in processors.")] = 2.0,
    pids: Annotated[int, typer.Option(min=16, max=MAX_PIDS, help="Max processes and threads.")] = 2048,
    disk: Disk = None,
    working_dir: Annotated[str, typer.Option(help="Working directory of agents.")] = "/workspace/project",
    runtime: Annotated[str | None, typer.Option(help="A container runtime of the engine, such as runsc.")] = None,
    capability: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Capability to add, such as CHOWN; all others are dropped. Repeatable."),
    ] = None,
    port: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER",
            help="Port to expose besides AGENT_SERVER=8000, or another number for that one. Repeatable.",
        ),
    ] = None,
    warm: Warm = None,
    warm_max: WarmMax = None,
    wake: Wake = None,
    egress: Egress = None,
    freeze_after: FreezeAfter = None,
    stop_after: StopAfter = None,
    delete_after: DeleteAfter = None,
    max_age: MaxAge = None,
) -> None:
    """Add a spec."""
    from shared.cli.local import spec_operations

    columns: dict[str, Any] = {
        "command": _command(command),
        "env": _pairs(env, "--env"),
        "memory_bytes": memory_mb * 1024**2,
        "cpus": cpus,
        "pids": pids,
        "disk_bytes": _size(disk),
        "working_dir": working_dir,
        "runtime": runtime,
        "capabilities": _capabilities(capability),
        "ports": _ports(port),
        "wake_on_traffic": wake is not False,
        "egress": _egress(egress) or "open",
        **_pool(warm or 0, warm_max),
        **_durations(freeze_after, stop_after, delete_after, max_age),
    }
    with installation().writing() as session:
        spec_operations.add_spec(session, image, default=default, **columns)
    typer.echo(f"added {image}")


@specs.command("set")
def set_spec(
    image: str,
    default: Default = False,
    warm: Warm = None,
    warm_max: WarmMax = None,
    wake: Wake = None,
    egress: Egress = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An environment variable; replaces all existing ones. Repeatable."),
    ] = None,
    memory_mb: Annotated[int | None, typer.Option(min=16, max=MAX_MEMORY_MB, help="Memory limit, MB.")] = None,
    cpus: Annotated[float | None, typer.Option(min=0.01, max=MAX_CPUS, help="CPU limit, in processors.")] = None,
    pids: Annotated[int | None, typer.Option(min=16, max=MAX_PIDS, help="Max processes and threads.")] = None,
    disk: Disk = None,
    freeze_after: FreezeAfter = None,
    stop_after: StopAfter = None,
    delete_after: DeleteAfter = None,
    max_age: MaxAge = None,
    yes: Yes = False,
) -> None:
    """Change a spec. Options that are left out stay unchanged.

    Changed deadlines and egress apply to existing sandboxes, too. All other changes apply to new containers only.
    Deadlines that delete sandboxes immediately need a confirmation.
    """
    from shared.cli.local import spec_operations

    limits = {"memory_bytes": memory_mb and memory_mb * 1024**2, "cpus": cpus, "pids": pids, "disk_bytes": _size(disk)}
    container: dict[str, object] = {"env": None if env is None else _pairs(env, "--env"), **limits}
    container |= {"wake_on_traffic": wake, "egress": _egress(egress)}
    columns = {name: value for name, value in {**_pool(warm, warm_max), **container}.items() if value is not None}
    durations = _durations(freeze_after, stop_after, delete_after, max_age)
    if not (durations or columns or default):
        raise typer.BadParameter("nothing to change: add an option, for example --freeze-after 30m or --warm 3")
    here = installation()
    if overdue := spec_operations.change_spec(here, image, columns, durations, default=default, delete=yes):
        typer.echo(f"{overdue} sandbox(es) are past that time and would be deleted immediately", err=True)
        confirm("Delete them?", yes=False)
        spec_operations.change_spec(here, image, columns, durations, default=default, delete=True)
    typer.echo(f"changed {image}")


@specs.command("remove")
def remove_spec(image: str) -> None:
    """Remove a spec without sandboxes, whose last one was deleted 30 days ago or earlier."""
    from shared.sandboxes import specs as stored

    with installation().writing() as session:
        stored.remove_spec(session, image)
    typer.echo(f"removed {image}")


def _egress(text: str | None) -> str | None:
    from shared.sandboxes.egress import normalize

    return None if text is None else normalize(text)


def _command(text: str | None) -> list[str] | None:
    try:
        words = shlex.split(text or "") or None
    except ValueError as error:
        raise typer.BadParameter(f"not quoted as in a shell: {error}", param_hint="--command") from None
    if text and not (words and _is_unicode(text)):
        raise typer.BadParameter(f"expected a program and its arguments, got {text!r}", param_hint="--command")
    return words


def _is_unicode(text: str) -> bool:
    """Whether no byte of the argument was outside of UTF-8: no response of the API could show it."""
    return storable(text) == text


def _pairs(texts: Sequence[str] | None, option: str, expected: str = "expected KEY=VALUE") -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not key or not equals or not _is_unicode(text):
            raise typer.BadParameter(f"{expected}, got {text!r}", param_hint=option)
        pairs[key] = value
    return pairs


def _capabilities(names: Sequence[str] | None) -> list[str]:
    for name in names or ():
        if not CAPABILITY.fullmatch(name):
            raise typer.BadParameter(
                f"expected a name such as NET_BIND_SERVICE, got {name!r}", param_hint="--capability"
            )
    return list(dict.fromkeys(names or ()))


def _ports(texts: Sequence[str] | None) -> dict[str, int]:
    ports = {"AGENT_SERVER": 8000}
    for name, number in _pairs(texts, "--port", PORT).items():
        # The name becomes a variable in the sandbox.
        if not PORT_NAME.fullmatch(name) or not number.isdecimal() or not 0 < int(number) < 65536:
            raise typer.BadParameter(f"{PORT}, got '{name}={number}'", param_hint="--port")
        ports[name] = int(number)
    if len(set(ports.values())) < len(ports):
        raise typer.BadParameter("each port must have a different number", param_hint="--port")
    return ports


def _pool(warm: int | None, warm_max: int | None) -> dict[str, int]:
    if warm is None:
        if warm_max is not None:
            raise typer.BadParameter("requires --warm", param_hint="--warm-max")
        return {}
    warm_max = warm + min(warm, 1) if warm_max is None else warm_max
    if warm_max < warm:
        raise typer.BadParameter(f"must be at least --warm ({warm})", param_hint="--warm-max")
    return {"warm_target": warm, "warm_most": warm_max}


def _durations(
    freeze_after: str | None, stop_after: str | None, delete_after: str | None, max_age: str | None
) -> dict[str, int | None]:
    texts = {"freeze_after": freeze_after, "stop_after": stop_after, "delete_after": delete_after, "max_age": max_age}
    given = {name: text for name, text in texts.items() if text is not None}
    return {f"{name}_seconds": _read(parse_duration, text, name.replace("_", "-")) for name, text in given.items()}


def _read(parse: Callable[[str], int | None], text: str, option: str) -> int | None:
    try:
        return parse(text)
    except Invalid as error:
        raise typer.BadParameter(str(error), param_hint=f"--{option}") from None


def _size(text: str | None) -> int | None:
    return None if text is None else _read(parse_size, text, "disk")
