"""The state of an installation, read from its database."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session

from shared.admin import nodes as admin_nodes
from shared.clock import now
from shared.container_logs import kept_logs
from shared.container_logs.selection import show_lines
from shared.db.migrations import Schema, read_schema
from shared.errors import NotFound
from shared.leasing import leases
from shared.leasing.leases import Backlog
from shared.models import Conversation, Node, Sandbox, StartTask
from shared.nodes import counts
from shared.warm_pool import pool as warm_pool

QUEUES: dict[str, Any] = {"sandboxes": Sandbox, "start tasks": StartTask, "conversations": Conversation}


@dataclass(frozen=True)
class ServiceStatus:
    """The state of the service.

    Args:
        nodes: each with the number of its used slots; without forgotten nodes that have none.
        sandboxes: the number of sandboxes by status, without deleted ones.
        pools: the numbers of ready and of booting warm sandboxes by spec.
        backlogs: the rows that no worker has claimed yet, by kind.
    """

    schema: Schema
    nodes: list[tuple[Node, int]]
    sandboxes: dict[str, int]
    pools: dict[str, tuple[int, int]]
    backlogs: dict[str, Backlog]

    @property
    def document(self) -> dict[str, Any]:
        """The status for programs."""
        return {
            "schema": self.schema._asdict(),
            "nodes": [
                {"id": node.id, "status": admin_nodes.status_of(node), "used": used, "capacity": node.capacity}
                | {"heartbeat_at": node.heartbeat_at, "detail": node.detail, "closed_reason": node.closed_reason}
                | {"impaired_reason": node.impaired_reason}
                for node, used in self.nodes
            ],
            "sandboxes": self.sandboxes,
            "pools": {spec: {"ready": ready, "booting": booting} for spec, (ready, booting) in self.pools.items()},
            "waiting": {
                name: {"waiting": found.waiting, "due": found.due, "oldest_due_seconds": due_seconds(found)}
                for name, found in self.backlogs.items()
            },
        }


def read_status(session: Session) -> ServiceStatus:
    """Read the current state."""
    return ServiceStatus(
        read_schema(session.connection()),
        [(listed.node, listed.used) for listed in admin_nodes.list_nodes(session)],
        _sum_by_status(counts.count_by_status(session)),
        warm_pool.count(session),
        {name: leases.backlog(session, table) for name, table in QUEUES.items()},
    )


def read_logs(session: Session, sandbox_id: str, tail: int) -> dict[str, Any]:
    """The last lines of a sandbox's containers, in the form of the API's responses.

    Raises:
        NotFound: there is no such sandbox.
    """
    sandbox = session.get(Sandbox, sandbox_id)
    if sandbox is None:
        raise NotFound("sandbox", sandbox_id)
    return show_lines(sandbox, kept_logs.list_kept(session, sandbox_id), is_live=False, tail=tail)


def due_seconds(backlog: Backlog) -> float:
    """How long the oldest overdue row has been due, in seconds; 0: no row is overdue."""
    return max(0.0, (now() - backlog.oldest_due_at).total_seconds()) if backlog.oldest_due_at else 0.0


def _sum_by_status(counted: Iterable[counts.Counted]) -> dict[str, int]:
    found = Counter[str]()
    for one in counted:
        found[one.status] += one.number
    return dict(sorted(found.items()))
