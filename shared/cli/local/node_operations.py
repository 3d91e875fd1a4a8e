"""Operations on nodes and their unknown containers."""

from collections.abc import Collection, Sequence

from sqlmodel import Session

from shared.admin import nodes as admin_nodes
from shared.admin.nodes import ListedNode
from shared.cli.local.installation import Installation
from shared.models import Sandbox, UnknownContainer
from shared.nodes import registry as node_registry
from shared.sandboxes import drain, quarantine
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes.drain import Drained
from shared.users import accounts


class NodeOperations(Installation):
    """Operations on the nodes of an installation."""

    def list_nodes(self) -> list[ListedNode]:
        """Every node by name, except forgotten ones without sandboxes."""
        with self.reading() as session:
            return admin_nodes.list_nodes(session)

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
        admin_nodes.drain_node(self.writing, name)

    def drain_progress(self, name: str) -> Drained:
        """The progress of draining a node."""
        with self.reading() as session:
            return drain.drain_progress(session, name)


def _with_owners(session: Session, sandboxes: Sequence[Sandbox]) -> list[tuple[Sandbox, str]]:
    names = {user.id: user.name for user in accounts.list_users(session)}
    return [(sandbox, names.get(sandbox.owner_id or "", "")) for sandbox in sandboxes]
