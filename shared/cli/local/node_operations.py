"""Operations on nodes and their unknown containers."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from sqlmodel import Session

from shared.cli.local.installation import Installation
from shared.models import Node, NodeSpecBackoff, Sandbox, UnknownContainer
from shared.nodes import placement
from shared.nodes import registry as node_registry
from shared.sandboxes import drain, quarantine
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes.drain import Drained
from shared.users import accounts


class ListedNode(NamedTuple):
    """A node in a list for operators.

    Args:
        used: the number of its sandboxes.
        backoffs: the specs of which it takes no sandboxes at present.
        unknown: the number of containers in quarantine there.
    """

    node: Node
    used: int
    backoffs: list[NodeSpecBackoff]
    unknown: int


class NodeOperations(Installation):
    """Operations on the nodes of an installation."""

    def list_nodes(self) -> list[ListedNode]:
        """Every node by name, except forgotten ones without sandboxes."""
        with self.reading() as session:
            used, backoffs = node_registry.used_slots(session), placement.open_breakers(session)
            unknown = quarantine.count(session)
            nodes = [node for node in node_registry.list_nodes(session) if node.forgotten_at is None or node.id in used]
        return [
            ListedNode(
                node,
                used.get(node.id, 0),
                [row for row in backoffs if row.node_id == node.id],
                unknown.get(node.id, 0),
            )
            for node in nodes
        ]

    def list_unknown(self, node: str | None = None) -> Sequence[UnknownContainer]:
        """The containers in quarantine at that node, or at all nodes."""
        with self.reading() as session:
            return quarantine.find(session, node)

    def approve_removal(self, node: str, names: Collection[str]) -> None:
        """Let a node's worker remove containers that are in quarantine there.

        Raises:
            NotFound: one of them is not in quarantine.
        """
        with self.writing() as session:
            quarantine.approve(session, node, names)

    def cordon_node(self, name: str) -> None:
        """Place no new sandboxes on a node.

        Raises:
            NotFound: there is no such node.
        """
        with self.writing() as session:
            node_registry.cordon(session, name)

    def uncordon_node(self, name: str) -> None:
        """Let a node take sandboxes again, and reset its spec backoffs.

        Raises:
            NotFound: there is no such node.
        """
        with self.writing() as session:
            node_registry.uncordon(session, name)

    def preview_forget(self, name: str) -> list[tuple[Sandbox, str]]:
        """The sandboxes of a lost node by id, with their owners' names.

        Raises:
            NotFound: there is no such node.
            Conflict: the node is not lost.
        """
        with self.reading() as session:
            node_registry.require_lost(session, name)
            return _with_owners(session, sandbox_queries.list_of_node(session, name))

    def forget_node(self, name: str) -> None:
        """Give up a lost node.

        Raises:
            NotFound: there is no such node.
            Conflict: the node is not lost.
        """
        with self.writing() as session:
            node_registry.forget(session, name)

    def preview_drain(self, name: str) -> list[tuple[Sandbox, str]]:
        """The sandboxes that draining a node would stop, by id, with their owners' names.

        Raises:
            NotFound: there is no such node.
        """
        with self.reading() as session:
            node_registry.get(session, name)
            return _with_owners(session, drain.concerned(session, name))

    def drain_node(self, name: str) -> None:
        """Cordon a node, and set the desired state of each of its sandboxes to STOPPED.

        Raises:
            NotFound: there is no such node.
        """
        self.cordon_node(name)
        for sandbox, _ in self.preview_drain(name):
            with self.writing() as session:
                drain.stop(session, name, sandbox.id)

    def drain_progress(self, name: str) -> Drained:
        """The progress of draining a node."""
        with self.reading() as session:
            return drain.drain_progress(session, name)


def _with_owners(session: Session, sandboxes: Sequence[Sandbox]) -> list[tuple[Sandbox, str]]:
    names = {user.id: user.name for user in accounts.list_users(session)}
    return [(sandbox, names.get(sandbox.owner_id or "", "")) for sandbox in sandboxes]
