"""`agent-workspace nodes`: what an operator does to nodes."""

from collections.abc import Sequence
from time import sleep
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from shared.cli.output import NAME, administration, age_text, print_table, time_text

if TYPE_CHECKING:
    from shared.cli.operations import Administration
    from shared.models import NodeSpecBackoff, UnknownContainer
    from shared.sandboxes.drain import Drained

Yes = Annotated[bool, typer.Option("--yes", help="Do it; without it, only say what would be done.")]
LOOK_SECONDS = 0.5

nodes = typer.Typer(help="Docker Engines and the workers beside them.", no_args_is_help=True)


@nodes.command("list")
def list_nodes() -> None:
    """Print every node, how full it is, and how long ago its worker was last heard of."""
    rows = [
        (
            node.id,
            "FORGOTTEN" if node.forgotten_at else node.status,
            used,
            node.capacity,
            age_text(node.heartbeat_at),
            _trouble(node.detail, resting, unknown),
        )
        for node, used, resting, unknown in administration().list_nodes()
    ]
    print_table(("id", "status", "used", "capacity", "heartbeat", "detail"), rows)


@nodes.command("cordon")
def cordon_node(name: str) -> None:
    """Place no new sandboxes on a node; those it has stay, and can be paused, resumed and deleted."""
    administration().cordon_node(name)
    typer.echo(f"{name} takes no new sandboxes")


@nodes.command("uncordon")
def uncordon_node(name: str) -> None:
    """Let a node take new sandboxes again: after a cordon, or at once where its engine had refused too many."""
    administration().uncordon_node(name)
    typer.echo(f"{name} takes new sandboxes")


@nodes.command("forget")
def forget_node(name: str, yes: Yes = False) -> None:
    """Give up a lost node that never comes back: deletes on it end, and its sandboxes can be made anew elsewhere."""
    installation = administration()
    rows = [
        (sandbox.id, owner, sandbox.status, "DELETED" if sandbox.desired == "DELETED" else "ERROR, its files lost")
        for sandbox, owner in installation.foresee_forgetting(name)
    ]
    if yes:
        installation.forget_node(name)
        typer.echo(f"{name} is forgotten; other nodes' workers see to its {len(rows)} sandboxes")
        return
    print_table(("sandbox", "owner", "status", "becomes"), rows)
    typer.echo(f"nothing was done; `{NAME} nodes forget {name} --yes` does it", err=True)


@nodes.command("drain")
def drain_node(name: str, yes: Yes = False) -> None:
    """Cordon a node, stop every sandbox there, and wait until nothing runs; files stay, and so does the cordon."""
    installation = administration()
    found = installation.foresee_draining(name)
    if not yes:
        print_table(
            ("sandbox", "owner", "status", "becomes"),
            [(sandbox.id, owner, sandbox.status, "PAUSED, stopped") for sandbox, owner in found],
        )
        typer.echo(f"nothing was done; `{NAME} nodes drain {name} --yes` does it", err=True)
        return
    try:
        installation.drain_node(name)
        drained = _await_drained(installation, name)
    except KeyboardInterrupt:
        typer.echo(f"{name} stays cordoned, and what was wished stands; the same command goes on waiting", err=True)
        raise typer.Exit(130) from None
    typer.echo(f"{name} is cordoned; {len(drained.resting)} sandboxes have their files there, and none of them runs")
    if drained.running:
        typer.echo(f"resumed meanwhile, and running: {' '.join(drained.running)}", err=True)
        raise typer.Exit(1)


@nodes.command("unknown")
def list_unknown() -> None:
    """Print containers and volumes at engines that the store has never heard of, and what their removal waits for."""
    rows = [
        (row.node_id, row.name, time_text(row.first_seen_at), _awaited(row)) for row in administration().list_unknown()
    ]
    print_table(("node", "name", "first seen", "removed"), rows)


@nodes.command("remove-unknown")
def remove_unknown(
    node: str,
    names: Annotated[list[str] | None, typer.Argument(help="As `nodes unknown` prints them; none: all.")] = None,
    yes: Yes = False,
) -> None:
    """Have containers and volumes removed at a node, with their files, that the store has never heard of."""
    installation = administration()
    listed = [row.name for row in installation.list_unknown(node)]
    chosen = names or listed
    if yes:
        installation.approve_removal(node, chosen)
        typer.echo(f"the worker of {node} removes {len(chosen)} unknown container(s), with their files")
        return
    print_table(("name", "becomes"), [(name, "removed, its files lost") for name in chosen if name in listed])
    typer.echo(f"nothing was done; `{NAME} nodes remove-unknown {node} --yes` does it", err=True)


def _awaited(row: "UnknownContainer") -> str:
    if row.approved_at is not None:
        return "by its worker, at once"
    return "on your word only: there are too many" if row.one_of_many else "once its quarantine is over"


def _await_drained(installation: "Administration", name: str) -> "Drained":
    drained = installation.check_drained(name)
    total = len(drained.awaited)
    with Progress(console=Console(stderr=True), transient=True, disable=total == 0) as progress:
        bar = progress.add_task("stopping", total=total)
        while drained.awaited:
            sleep(LOOK_SECONDS)
            drained = installation.check_drained(name)
            progress.update(bar, completed=max(0, total - len(drained.awaited)))
    return drained


def _trouble(problem: str | None, resting: "Sequence[NodeSpecBackoff]", unknown: int) -> str:
    rests = [
        f"no new {row.spec_id} until {time_text(row.rests_until)}, {row.failures} refused: {row.detail}"
        for row in resting
    ]
    quarantined = [f"{unknown} unknown container(s): see `{NAME} nodes unknown`"] if unknown else []
    return "; ".join([*([problem] if problem else []), *rests, *quarantined])
