"""What a restored database says about containers to be removed, and for how long."""

from datetime import timedelta
from pathlib import Path

import pytest
from sqlmodel import select

from shared.backup import store
from shared.cli.backup import operations
from shared.cli.backup.operations import BackupOperations
from shared.cli.local.installation import LocalInstallation
from shared.clock import now
from shared.db.database import Database
from shared.models import Sandbox, StaleContainer, UnknownContainer
from shared.nodes import registry
from shared.retention import tombstones
from shared.retention.tombstones import RETENTION
from shared.sandboxes import quarantine
from shared.settings import Settings
from shared.states import Status
from tests.due_checks import is_due
from tests.factories import NODE_ID, ApiUser, make_node, make_sandbox, make_start_task

PASSPHRASE = "correct horse battery"


def test_container_of_a_sandbox_that_has_moved_back_is_not_removed(
    settings: Settings, database: Database, sandbox: Sandbox, clean: Settings, tmp_path: Path
) -> None:
    """Its present files would be lost as soon as the worker starts. Without the record, it is paused and kept."""
    former = make_node(database, "former").id
    with database.transaction() as session:
        session.add(StaleContainer(sandbox_id=sandbox.id, node_id=former))
    store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    BackupOperations(clean).restore(tmp_path / "backup", PASSPHRASE)
    with LocalInstallation(clean).reading() as session:
        assert registry.stale_containers(session, former) == set()


def test_quarantine_starts_again(
    settings: Settings, database: Database, sandbox: Sandbox, clean: Settings, tmp_path: Path
) -> None:
    long_ago = now() - timedelta(days=2)
    with database.transaction() as session:
        for name, approved_at in ((f"aw-{sandbox.id}", None), ("aw-approved", long_ago)):
            session.add(UnknownContainer(node_id=NODE_ID, name=name, first_seen_at=long_ago, approved_at=approved_at))
    store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    BackupOperations(clean).restore(tmp_path / "backup", PASSPHRASE)
    with LocalInstallation(clean).reading() as session:
        assert quarantine.find(session) == []


def test_retention_of_tombstones_starts_again(
    settings: Settings,
    database: Database,
    user: ApiUser,
    clean: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that returns may have their containers, which would be unknown without them."""
    monkeypatch.setattr(operations, "TOMBSTONES", 2)
    long_ago = now() - 2 * RETENTION
    for _ in range(5):
        make_sandbox(database, user, status=Status.DELETED, updated_at=long_ago)
    living = make_sandbox(database, user, updated_at=long_ago)
    store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    BackupOperations(clean).restore(tmp_path / "backup", PASSPHRASE)
    with LocalInstallation(clean).reading() as session:
        rows = session.exec(select(Sandbox).where(Sandbox.id != living.id)).all()
        assert (len(rows), is_due(session, tombstones.EXPIRED)) == (5, False)
        assert session.get_one(Sandbox, living.id).updated_at == long_ago


def test_sandboxes_of_starts_are_kept(
    settings: Settings, database: Database, user: ApiUser, sandbox: Sandbox, clean: Settings, tmp_path: Path
) -> None:
    """They may have been used since the backup. Now their boots or their starts may fail."""
    starting = make_sandbox(database, user, status=Status.STARTING)
    make_start_task(database, user, starting)
    pooled = make_sandbox(database, user, status=Status.STARTING, boot_key="ciphertext")
    store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    BackupOperations(clean).restore(tmp_path / "backup", PASSPHRASE)
    with LocalInstallation(clean).reading() as session:
        rows = session.exec(select(Sandbox)).all()
    found = {row.id: (row.ready_at is not None, row.goes_with_conversations) for row in rows}
    assert found == {starting.id: (True, False), pooled.id: (False, True), sandbox.id: (True, True)}
