"""`agent-workspace specs`: what an operator does to the templates of sandboxes."""

import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from shared.cli.output import administration, print_table
from shared.errors import Invalid
from shared.sandboxes.deadline_policy import FIELDS, parse_duration, show_duration

if TYPE_CHECKING:
    from shared.models import SandboxSpec

CAPABILITY = re.compile(r"[A-Z][A-Z_]{1,63}")
PORT_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
FreezeAfter = Annotated[
    str | None, typer.Option(metavar="TIME", help="Freeze what is not used for so long: 90s, 30m, 12h, 7d, or never.")
]
StopAfter = Annotated[
    str | None, typer.Option(metavar="TIME", help="Stop what was frozen so long ago, and free its memory.")
]
DeleteAfter = Annotated[
    str | None, typer.Option(metavar="TIME", help="Delete what was stopped, or failed, so long ago.")
]
MaxAge = Annotated[
    str | None, typer.Option(metavar="TIME", help="Delete what was made so long ago, whether it is used or not.")
]
Warm = Annotated[
    int | None, typer.Option(min=0, max=1000, help="Sandboxes that wait, booted, for whoever starts one next.")
]
WarmMost = Annotated[
    int | None,
    typer.Option(
        "--warm-max",
        "--warm-most",
        min=0,
        max=1000,
        help="Max warm sandboxes, booting ones included; the target plus one if left out. --warm-most: former name.",
    ),
]
Wake = Annotated[
    bool | None,
    typer.Option("--wake/--no-wake", help="Whether a request to one that is paused, by the API's path, resumes it."),
]
specs = typer.Typer(help="What sandboxes are made from; the first spec is the default.", no_args_is_help=True)


@specs.command("list")
def list_specs() -> None:
    """Print every spec, the default first; of its warm pool, how many members are ready and how many boot."""
    pools = administration().count_warm_sandboxes()
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
            _pool_text(spec, *pools.get(spec.id, (0, 0))),
            "yes" if spec.wake_on_traffic else "no",
            *(show_duration(getattr(spec, name)) for name in FIELDS),
        )
        for spec in administration().list_specs()
    ]
    limits = ("memory MB", "cpus", "pids")
    parts = ("working dir", "runtime", "ports", "capabilities", "environment", "warm", "wake")
    print_table(("image", "command", *limits, *parts, "freeze", "stop", "delete", "max age"), rows)


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
    warm: Warm = None,
    warm_most: WarmMost = None,
    wake: Wake = None,
    freeze_after: FreezeAfter = None,
    stop_after: StopAfter = None,
    delete_after: DeleteAfter = None,
    max_age: MaxAge = None,
) -> None:
    """Add a spec."""
    administration().add_spec(
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
        wake_on_traffic=wake is not False,
        **_pool(warm or 0, warm_most),
        **_durations(freeze_after, stop_after, delete_after, max_age),
    )
    typer.echo(f"added {image}")


@specs.command("set")
def set_spec(
    image: str,
    warm: Warm = None,
    warm_most: WarmMost = None,
    wake: Wake = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="All of them anew. May be given several times.")
    ] = None,
    memory_mb: Annotated[int | None, typer.Option(min=16, help="Memory, MB.")] = None,
    cpus: Annotated[float | None, typer.Option(min=0.01, help="Processor time, in processors.")] = None,
    pids: Annotated[int | None, typer.Option(min=16, help="Processes and threads.")] = None,
    freeze_after: FreezeAfter = None,
    stop_after: StopAfter = None,
    delete_after: DeleteAfter = None,
    max_age: MaxAge = None,
    yes: Annotated[bool, typer.Option("--yes", help="Even if sandboxes are deleted by it at once.")] = False,
) -> None:
    """Change a spec; what is not named stays.

    Deadlines hold for the sandboxes that are there, too; what containers are made from, for those made from now on.
    """
    limits = {"memory_bytes": memory_mb and memory_mb * 1024**2, "cpus": cpus, "pids": pids}
    made_from: dict[str, object] = {"env": None if env is None else _pairs(env, "--env"), **limits}
    made_from["wake_on_traffic"] = wake
    columns = {name: value for name, value in {**_pool(warm, warm_most), **made_from}.items() if value is not None}
    durations = _durations(freeze_after, stop_after, delete_after, max_age)
    if not durations and not columns:
        raise typer.BadParameter("say what to change, for example --freeze-after 30m, or --warm 3")
    administration().change_spec(image, columns, durations, delete=yes)
    typer.echo(f"changed {image}")


@specs.command("remove")
def remove_spec(image: str) -> None:
    """Remove a spec that no sandbox was ever made from."""
    administration().remove_spec(image)
    typer.echo(f"removed {image}")


def _pool_text(spec: "SandboxSpec", ready: int, booting: int) -> str:
    if not (spec.warm_target or ready or booting):
        return "none"
    trouble = f": {spec.warm_detail}" if spec.warm_detail else ""
    return f"{ready} of {spec.warm_target}, {booting} booting, at most {spec.warm_most}{trouble}"


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


def _pool(warm: int | None, most: int | None) -> dict[str, int]:
    if warm is None:
        if most is not None:
            raise typer.BadParameter("say --warm too", param_hint="--warm-max")
        return {}
    most = warm + min(warm, 1) if most is None else most
    if most < warm:
        raise typer.BadParameter("there can't be fewer than wait", param_hint="--warm-max")
    return {"warm_target": warm, "warm_most": most}


def _durations(*texts: str | None) -> dict[str, int | None]:
    return {name: _duration(name, text) for name, text in zip(FIELDS, texts, strict=True) if text is not None}


def _duration(name: str, text: str) -> int | None:
    try:
        return parse_duration(text)
    except Invalid as error:
        option = "--" + name.removesuffix("_seconds").replace("_", "-")
        raise typer.BadParameter(str(error), param_hint=option) from None
