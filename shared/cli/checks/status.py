"""`agent-workspace status`: the state of the service, from its database."""

from itertools import starmap
from typing import TYPE_CHECKING

import typer

from shared.cli.local.environment import installation
from shared.cli.output import NAME, age_text, print_details, showing

if TYPE_CHECKING:
    from shared.db.migrations import Schema
    from shared.leasing.leases import Backlog
    from shared.models import Node

status = typer.Typer(add_completion=False)


@status.command("status")
@showing
def show_status() -> None:
    """Show the nodes, sandboxes by status, waiting work and its age, and the schema."""
    from shared.cli.local.status_operations import read_status

    with installation().reading() as session:
        found = read_status(session)
    print_details(
        {
            "database": _schema_text(found.schema),
            "nodes": "\n".join(starmap(_node_text, found.nodes)) or "none: no worker has ever reported",
            "sandboxes": ", ".join(f"{count} {state}" for state, count in found.sandboxes.items()) or "none",
            "waiting": "\n".join(_waiting_text(name, backlog) for name, backlog in found.backlogs.items()),
            "pools": "\n".join(starmap(_pool_text, found.pools.items())) or "none",
        },
        found.document,
    )


def _schema_text(schema: "Schema") -> str:
    if schema.is_current:
        return f"schema {schema.found}, current"
    if schema.is_newer:
        return f"schema {schema.found}, of a newer version; this version needs {schema.needed}"
    return f"schema {schema.found}, but this version needs {schema.needed}: run `{NAME} db migrate`"


def _node_text(node: "Node", used: int) -> str:
    from shared.admin.nodes import status_of

    problem = node.detail or node.closed_reason or node.impaired_reason
    text = f"{node.id}: {status_of(node)}, {used} of {node.capacity} slots, heartbeat {age_text(node.heartbeat_at)}"
    return f"{text}, {problem}" if problem else text


def _pool_text(spec: str, counted: tuple[int, int]) -> str:
    return f"{spec}: {counted[0]} ready, {counted[1]} booting"


def _waiting_text(name: str, backlog: "Backlog") -> str:
    from shared.cli.local.status_operations import due_seconds

    overdue = f", {backlog.due} overdue, the oldest for {due_seconds(backlog):.0f} s" if backlog.due else ""
    return f"{backlog.waiting} {name}{overdue}"
