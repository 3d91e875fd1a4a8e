"""After a restore, a node whose worker has not started yet is not taken for one that has failed."""

from datetime import timedelta
from functools import partial
from pathlib import Path

from shared.backup import store
from shared.cli.backup.operations import BackupOperations
from shared.cli.local.installation import LocalInstallation
from shared.clock import now
from shared.db.database import Database
from shared.nodes import registry
from shared.settings import Settings
from shared.sql.statements import send
from shared.states import NodeStatus
from tests.factories import make_node, make_sandbox, make_user

PASSPHRASE = "correct horse battery"


def test_restored_nodes_are_lost_but_not_failed_over_until_their_first_heartbeat(
    settings: Settings, database: Database, clean: Settings, tmp_path: Path
) -> None:
    """Otherwise the first worker would mark the sandboxes of the others, and a resume would recreate them elsewhere."""
    make_node(database, "a")
    make_node(database, "b", status=NodeStatus.CORDONED)
    make_node(database, "c", status=NodeStatus.CORDONED, detail="away", forgotten_at=now())
    make_sandbox(database, make_user(database, "bob"), node_id="c")
    store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    BackupOperations(clean).restore(tmp_path / "backup", PASSPHRASE)
    with LocalInstallation(clean).writing() as session:
        nodes = {node.id: (node.status, node.detail) for node in registry.list_nodes(session)}
        assert nodes == {
            "a": (NodeStatus.LOST, registry.UNREPORTED),
            "b": (NodeStatus.CORDONED, registry.UNREPORTED),
            "c": (NodeStatus.CORDONED, "away"),
        }
        assert registry.heartbeats(partial(send, session)).keys() == {"c"}
        registry.record_heartbeat(session, "a", capacity=1, problem=None)
        assert registry.heartbeats(partial(send, session)).keys() == {"a", "c"}
        assert registry.get(session, "a").status == NodeStatus.READY


def test_restored_node_that_does_not_return_can_be_forgotten(database: Database) -> None:
    make_node(database, "a", heartbeat_at=now() - timedelta(minutes=1))
    make_sandbox(database, make_user(database, "bob"), node_id="a")
    with database.transaction() as session:
        registry.mark_unreported(session)
        assert registry.heartbeats(partial(send, session)) == {}
        registry.forget(session, "a")
        session.flush()
        assert registry.heartbeats(partial(send, session)).keys() == {"a"}
