"""`agent-workspace nodes`: the commands for nodes."""

from collections.abc import Collection, Sequence
from time import sleep
from typing import TYPE_CHECKING, Annotated

import typer

from shared.cli.backup.commands import back_up_files, restore_files
from shared.cli.confirmation import Yes, confirm
from shared.cli.exits import FAILED, INTERRUPTED
from shared.cli.local.environment import installation
from shared.cli.output import NAME, age_text, cell_text, print_table, showing, time_text
from shared.cli.service.joining import invite, join

if TYPE_CHECKING:
    from shared.cli.local.installation import LocalInstallation
    from shared.models import Node, NodeSpecBackoff, UnknownContainer
    from shared.sandboxes.drain import DrainProgress

POLL_SECONDS = 0.5
# The kinds of disk that nodes have for the files of new sandboxes, as tables show them.
DISKS = {"image": "limited", "plain": "no limit"}
HEADER = ("id", "status", "used", "capacity", "disks", "heartbeat", "detail")
FIELDS = ("id", "status", "used", "capacity", "disks", "heartbeat_at", "detail")

nodes = typer.Typer(help="Manage nodes: Docker Engines with their workers.", no_args_is_help=True)
nodes.command("invite")(invite)
nodes.command("join")(join)
nodes.command("backup")(back_up_files)
nodes.command("restore")(restore_files)


@nodes.command("list")
@showing
def list_nodes() -> None:
    """List nodes with their sandboxes, their capacity and the age of their last heartbeat."""
    from shared.admin import nodes as admin_nodes

    with installation().reading() as session:
        listed = admin_nodes.list_nodes(session)
    rows = [
        (
            node.id,
            admin_nodes.status_of(node),
            used,
            node.capacity,
            DISKS.get(node.disk_kind or "", "unknown"),
            node.heartbeat_at,
            _problems(node, backoffs, unknown),
        )
        for node, used, backoffs, unknown in listed
    ]
    texts = [(*row[:5], age_text(row[5]), row[6]) for row in rows]
    print_table(HEADER, texts, objects=[dict(zip(FIELDS, row, strict=True)) for row in rows])


@nodes.command("cordon")
def cordon_node(name: str) -> None:
    """Place no new sandboxes on a node. Its existing sandboxes can still be paused, resumed and deleted."""
    from shared.nodes import registry

    with installation().writing() as session:
        registry.cordon(session, name)
    typer.echo(f"{name} takes no new sandboxes")


@nodes.command("uncordon")
def uncordon_node(name: str) -> None:
    """Let a node take new sandboxes again, after a cordon or after too many failures of its engine."""
    from shared.nodes import placement, registry

    with installation().writing() as session:
        registry.uncordon(session, name)
        obstacle = placement.find_obstacle(registry.get(session, name))
    ready = f"{name} takes new sandboxes"
    typer.echo(f"{name} is not cordoned, but takes no new sandboxes: {obstacle}" if obstacle else ready)


@nodes.command("forget")
def forget_node(name: str, yes: Yes = False) -> None:
    """Decommission a lost node: complete its deletes, and let other nodes recreate its sandboxes, without files."""
    from shared.admin.sandbox_lists import with_owners
    from shared.nodes import registry
    from shared.sandboxes import queries

    with installation().reading() as session:
        registry.require_lost(session, name)
        affected = with_owners(session, queries.list_of_node(session, name))
    rows = [
        (sandbox.id, owner, sandbox.status, "DELETED" if sandbox.desired == "DELETED" else "ERROR, its files lost")
        for sandbox, owner in affected
    ]
    if not yes:
        print_table(("sandbox", "owner", "status", "becomes"), rows)
    confirm(f"Forget {name}?", yes=yes)
    with installation().writing() as session:
        registry.forget(session, name)
    typer.echo(f"{name} is forgotten; the workers of other nodes now handle its {len(rows)} sandboxes")


@nodes.command("drain")
def drain_node(name: str, yes: Yes = False) -> None:
    """Cordon a node, stop its sandboxes, and wait until none runs. The files and the cordon remain."""
    from shared.admin import nodes as admin_nodes
    from shared.admin.sandbox_lists import with_owners
    from shared.nodes import registry
    from shared.sandboxes import drain

    here = installation()
    with here.reading() as session:
        registry.get(session, name)
        affected = with_owners(session, drain.find_running(session, name))
    if not yes:
        print_table(
            ("sandbox", "owner", "status", "becomes"),
            [(sandbox.id, owner, sandbox.status, "PAUSED, stopped") for sandbox, owner in affected],
        )
    confirm(f"Drain {name}?", yes=yes)
    try:
        admin_nodes.drain_node(here.writing, name)
        drained = _await_drained(here, name)
    except KeyboardInterrupt:
        typer.echo(
            f"{name} stays cordoned, and its sandboxes still stop; repeat this to continue waiting",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    typer.echo(f"{name} is cordoned; {len(drained.resting)} sandboxes have files there, and none of these runs")
    if drained.running:
        typer.echo(f"resumed during the drain and still running: {' '.join(drained.running)}", err=True)
        raise typer.Exit(FAILED)


@nodes.command("unknown")
@showing
def list_unknown() -> None:
    """List containers and volumes that are not in the database, and when they are removed."""
    from shared.sandboxes import quarantine

    with installation().reading() as session:
        found = quarantine.find(session)
    rows = [(row.node_id, row.name, row.first_seen_at, _awaited(row)) for row in found]
    print_table(("node", "name", "first seen", "removed"), rows)


@nodes.command("remove-unknown")
def remove_unknown(
    node: str,
    names: Annotated[list[str] | None, typer.Argument(help="Names that `nodes unknown` prints. Default: all.")] = None,
    yes: Yes = False,
) -> None:
    """Remove a node's containers and volumes that are not in the database, with their files."""
    from shared.nodes import placement, registry
    from shared.sandboxes import quarantine

    with installation().reading() as session:
        is_away = placement.is_silent(registry.get(session, node).heartbeat_at)
        listed = [row.name for row in quarantine.find(session, node)]
    chosen = names or listed
    if not yes:
        print_table(("name", "becomes"), [(name, "removed, with its files") for name in chosen if name in listed])
    confirm(f"Remove them from {node}?", yes=yes)
    with installation().writing() as session:
        quarantine.approve(session, node, chosen)
    when = "as soon as it runs again" if is_away else "now"
    typer.echo(f"the worker of {node} removes {len(chosen)} unknown container(s) {when}, with their files")


def _awaited(row: "UnknownContainer") -> str:
    if row.approved_at is not None:
        return "by the node's worker, immediately"
    return "only by `nodes remove-unknown`: too many" if row.one_of_many else "after its quarantine"


def _await_drained(here: "LocalInstallation", name: str) -> "DrainProgress":
    from rich.console import Console
    from rich.progress import Progress

    drained, is_warned, reported = _read_progress(here, name), False, set[str]()
    total = len(drained.awaited)
    with Progress(console=Console(stderr=True), transient=True, disable=total == 0) as progress:
        bar = progress.add_task("stopping", total=total)
        while drained.awaited:
            is_warned = is_warned or _warn_if_silent(here, name)
            sleep(POLL_SECONDS)
            drained = _read_progress(here, name)
            _report_obstacles(here, drained.awaited, reported)
            progress.update(bar, completed=max(0, total - len(drained.awaited)))
    return drained


def _warn_if_silent(here: "LocalInstallation", name: str) -> bool:
    """Warn if the worker of the node, which stops the sandboxes, is silent; return whether it is."""
    from shared.nodes import placement, registry

    with here.reading() as session:
        last = registry.get(session, name).heartbeat_at
    if is_silent := placement.is_silent(last):
        wait = "its sandboxes stop when a worker runs there again; Ctrl-C ends only this wait"
        typer.echo(f"the last heartbeat of {name} was {age_text(last)}: {wait}", err=True)
    return is_silent


def _report_obstacles(here: "LocalInstallation", awaited: Collection[str], reported: set[str]) -> None:
    """Print why sandboxes are not stopped yet, each reason once."""
    from shared.sandboxes import drain

    with here.reading() as session:
        found = drain.find_obstacles(session, awaited)
    lines = {f"{sandbox_id} is not stopped yet: {why}" for sandbox_id, why in found.items()}
    for line in sorted(lines - reported):
        typer.echo(cell_text(line), err=True)
    reported |= lines


def _read_progress(here: "LocalInstallation", name: str) -> "DrainProgress":
    from shared.sandboxes import drain

    with here.reading() as session:
        return drain.drain_progress(session, name)


def _problems(node: "Node", backoffs: "Sequence[NodeSpecBackoff]", unknown: int) -> str:
    paused_specs = [
        f"no new {row.spec_id} until {time_text(row.backoff_until)}, {row.failures} failed: {row.detail}"
        for row in backoffs
    ]
    quarantined = [f"{unknown} unknown container(s): see `{NAME} nodes unknown`"] if unknown else []
    closed = [f"takes no new sandboxes: {node.closed_reason}"] if node.closed_reason else []
    own = [reason for reason in (node.detail, node.impaired_reason) if reason]
    return "; ".join([*own, *closed, *paused_specs, *quarantined])
