"""The list of nodes for operators, and the cordon and drain of a node."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from sqlmodel import Session

from shared.models import Node, NodeSpecBackoff
from shared.nodes import placement
from shared.nodes import registry as node_registry
from shared.sandboxes import drain, quarantine
from shared.users import audit
from shared.users.audit import Actor


class ListedNode(NamedTuple):
    """A node in a list for operators.

    Args:
        used: the number of its sandboxes that take its capacity: all but warm ones.
        backoffs: the specs of which the node takes no sandboxes at present.
        unknown: the number of the node's containers in quarantine.
    """

    node: Node
    used: int
    backoffs: list[NodeSpecBackoff]
    unknown: int


def status_of(node: Node) -> str:
    """The node's status for operators."""
    return "FORGOTTEN" if node.forgotten_at else node.status


def list_nodes(session: Session) -> list[ListedNode]:
    """Every node by name, except forgotten ones without sandboxes."""
    used, backoffs = node_registry.used_slots(session), placement.open_breakers(session)
    unknown = quarantine.count(session)
    return [
        ListedNode(
            node,
            used.get(node.id, 0),
            [row for row in backoffs if row.node_id == node.id],
            unknown.get(node.id, 0),
        )
        for node in node_registry.list_nodes(session)
        if node.forgotten_at is None or node.id in used
    ]


def cordon_node(session: Session, name: str, actor: Actor) -> None:
    """Place no new sandboxes on a node.

    Raises:
        NotFound: there is no such node.
    """
    node_registry.cordon(session, name)
    audit.record(session, actor, "cordon", name)


def uncordon_node(session: Session, name: str, actor: Actor) -> None:
    """Let a node take sandboxes again, and reset its spec backoffs.

    Raises:
        NotFound: there is no such node.
    """
    node_registry.uncordon(session, name)
    audit.record(session, actor, "uncordon", name)


def drain_node(writing: Callable[[], AbstractContextManager[Session]], name: str, actor: Actor | None = None) -> None:
    """Cordon a node, and set the desired state of each of its sandboxes to STOPPED, each in its own transaction.

    Args:
        writing: opens a transaction.
        actor: a signed-in operator, whose action is recorded; None: the command line.

    Raises:
        NotFound: there is no such node.
    """
    with writing() as session:
        node_registry.cordon(session, name)
        if actor:
            audit.record(session, actor, "drain", name)
        ids = [sandbox.id for sandbox in drain.find_running(session, name)]
    for sandbox_id in ids:
        with writing() as session:
            drain.stop(session, name, sandbox_id)
