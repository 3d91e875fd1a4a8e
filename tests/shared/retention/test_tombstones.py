"""Tombstones of sandboxes are deleted after their retention, unless other rows still need them."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from sqlmodel import SQLModel, select

from shared.clock import after, now
from shared.db.database import Database
from shared.models import (
    Conversation,
    Sandbox,
    SandboxLog,
    SandboxTransition,
    StaleContainer,
    StartTask,
)
from shared.retention import tombstones
from shared.retention.tombstones import RETENTION
from shared.states import Stage, Status
from tests.due_checks import is_due
from tests.factories import ApiUser, make_conversation, make_event, make_node, make_sandbox, make_start_task


def make_tombstone(database: Database, user: ApiUser, **columns: Any) -> Sandbox:
    """A sandbox whose retention has ended."""
    return make_sandbox(database, user, status=Status.DELETED, updated_at=now() - RETENTION, **columns)


def delete_conversation_of(database: Database, user: ApiUser, sandbox: Sandbox, **columns: Any) -> Conversation:
    """A conversation whose retention has ended."""
    ended = {"listed": False, "deleted_at": now() - RETENTION}
    return make_conversation(database, user, sandbox, **(ended | columns))


def add(database: Database, *rows: SQLModel) -> None:
    """Insert the rows."""
    with database.transaction() as session:
        session.add_all(rows)


def delete_expired(database: Database) -> None:
    """Delete expired tombstones once, as a sweep does."""
    with database.transaction() as session:
        tombstones.delete_expired(session)


def ids_of(database: Database, table: type[Sandbox] | type[Conversation] | type[StartTask]) -> set[str]:
    """The ids of all rows of a table."""
    with database.reading() as session:
        return set(session.exec(select(table.id)).all())


def has_expired(database: Database) -> bool:
    """Whether a sweep would delete tombstones."""
    with database.reading() as session:
        return is_due(session, tombstones.EXPIRED)


def test_tombstone_is_deleted_with_all_rows_of_its_sandbox(database: Database, user: ApiUser) -> None:
    gone = make_tombstone(database, user)
    delete_conversation_of(database, user, gone)
    log = SandboxLog(sandbox_id=gone.id, owner_id=user.id, container_id="c", expires_at=now())
    add(database, SandboxTransition(sandbox_id=gone.id, to_status=Status.DELETED), log)
    assert has_expired(database)
    delete_expired(database)
    assert not has_expired(database)
    assert ids_of(database, Sandbox) == ids_of(database, Conversation) == set()
    with database.reading() as session:
        assert session.exec(select(SandboxTransition)).all() == []
        assert session.exec(select(SandboxLog)).all() == []


def test_tombstone_of_a_warm_sandbox_is_deleted(database: Database, user: ApiUser) -> None:
    make_tombstone(database, user, owner_id=None)
    delete_expired(database)
    assert ids_of(database, Sandbox) == set()


@pytest.mark.parametrize("status", [status for status in Status if status != Status.DELETED])
def test_existing_sandbox_is_kept_regardless_of_its_age(database: Database, user: ApiUser, status: Status) -> None:
    old = make_sandbox(database, user, status=status, updated_at=now() - 2 * RETENTION)
    assert not has_expired(database)
    delete_expired(database)
    assert ids_of(database, Sandbox) == {old.id}


def test_tombstone_is_kept_for_its_retention(database: Database, user: ApiUser) -> None:
    young = make_sandbox(database, user, status=Status.DELETED, updated_at=now() - RETENTION + timedelta(minutes=1))
    assert not has_expired(database)
    delete_expired(database)
    assert ids_of(database, Sandbox) == {young.id}


def with_conversation(database: Database, user: ApiUser, sandbox: Sandbox) -> None:
    """A conversation that its owner has kept."""
    make_conversation(database, user, sandbox)


def with_young_tombstone(database: Database, user: ApiUser, sandbox: Sandbox) -> None:
    """A conversation that was deleted a moment ago."""
    delete_conversation_of(database, user, sandbox, deleted_at=now())


def with_pending_deletion(database: Database, user: ApiUser, sandbox: Sandbox) -> None:
    """A deleted conversation whose worker has not finished."""
    delete_conversation_of(database, user, sandbox, awaits_sandbox=True)


def with_events(database: Database, user: ApiUser, sandbox: Sandbox) -> None:
    """A deleted conversation that still has an event."""
    make_event(database, delete_conversation_of(database, user, sandbox))


def with_start(database: Database, user: ApiUser, sandbox: Sandbox) -> None:
    """A start that has not ended."""
    make_start_task(database, user, sandbox)


def with_stale_container(database: Database, _user: ApiUser, sandbox: Sandbox) -> None:
    """A container on a lost node."""
    make_node(database, "lost")
    add(database, StaleContainer(sandbox_id=sandbox.id, node_id="lost"))


def with_log(database: Database, user: ApiUser, sandbox: Sandbox) -> None:
    """A log that is kept for longer than the tombstone (`AW_CONTAINER_LOG_DAYS`)."""
    add(database, SandboxLog(sandbox_id=sandbox.id, owner_id=user.id, container_id="c", expires_at=after(60)))


NEEDS = (
    *(with_conversation, with_young_tombstone, with_pending_deletion, with_events),
    *(with_start, with_stale_container, with_log),
)


@pytest.mark.parametrize("need", NEEDS)
def test_needed_tombstone_is_kept_and_checked_again_later(
    database: Database, user: ApiUser, need: Callable[[Database, ApiUser, Sandbox], None]
) -> None:
    needed, other = make_tombstone(database, user), make_tombstone(database, user)
    need(database, user, needed)
    before = ids_of(database, Conversation)
    delete_expired(database)
    assert ids_of(database, Sandbox) == {needed.id}, other.id
    assert ids_of(database, Conversation) == before
    assert not has_expired(database)
    with time_machine.travel(now() + RETENTION + timedelta(seconds=1), tick=False):
        assert has_expired(database)


def test_deleted_conversations_are_removed_beside_one_that_is_kept(database: Database, user: ApiUser) -> None:
    sandbox = make_tombstone(database, user)
    kept = make_conversation(database, user, sandbox)
    delete_conversation_of(database, user, sandbox)
    delete_expired(database)
    assert ids_of(database, Conversation) == {kept.id}


def test_deleted_conversation_of_an_existing_sandbox_is_kept(database: Database, user: ApiUser) -> None:
    """Its sandbox may still send webhooks, which would create it again."""
    deleted = delete_conversation_of(database, user, make_sandbox(database, user, status=Status.PAUSED))
    delete_expired(database)
    assert ids_of(database, Conversation) == {deleted.id}


def test_successful_start_is_kept_with_its_conversation(database: Database, user: ApiUser) -> None:
    sandbox = make_tombstone(database, user)
    conversation = make_conversation(database, user, sandbox)
    task = make_start_task(database, user, sandbox, stage=Stage.READY, conversation_id=conversation.id)
    delete_expired(database)
    assert ids_of(database, StartTask) == {task.id}


def test_oldest_tombstones_are_deleted_first(database: Database, user: ApiUser) -> None:
    older = [make_sandbox(database, user, status=Status.DELETED, updated_at=now() - 2 * RETENTION) for _ in range(2)]
    newer = make_tombstone(database, user)
    with database.transaction() as session:
        tombstones.delete_expired(session, limit=2)
    assert ids_of(database, Sandbox) == {newer.id}, older


def test_many_conversations_are_deleted_in_several_rounds(
    database: Database, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tombstones, "MAX_CONVERSATIONS", 2)
    sandbox = make_tombstone(database, user)
    for _ in range(5):
        delete_conversation_of(database, user, sandbox)
    left = []
    for _ in range(3):
        delete_expired(database)
        left.append((len(ids_of(database, Conversation)), len(ids_of(database, Sandbox))))
    assert left == [(3, 1), (1, 1), (0, 0)]
