"""Deletion of conversations: which sandboxes go with them, and very many sub-conversations from hostile sandboxes."""

import re
from typing import Any

import pytest
from sqlalchemy import event
from sqlmodel import select

from api.schemas.v1.start_tasks import StartRequest
from shared.clock import now
from shared.conversations import deletion, start_tasks
from shared.db.database import Database
from shared.ids import new_id
from shared.models import ChangeEntry, Conversation, Sandbox, StartTask
from shared.queue.jobs import Job
from shared.states import Desired, Stage
from tests.factories import ApiUser, make_conversation, make_sandbox, make_start_task
from tests.rows import as_stored

CHILDREN, MAX_BOUND = 30, 25


def delete(database: Database, owner: ApiUser, conversation: Conversation) -> list[Job]:
    with database.transaction() as session:
        return deletion.delete_conversation(session, conversation.id, owner.id, due_at=now())


def test_sandbox_that_was_not_made_for_a_conversation_is_kept(database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user, goes_with_conversations=False)
    delete(database, user, make_conversation(database, user, sandbox))
    assert as_stored(database, sandbox).desired == Desired.RUNNING


def test_sandbox_is_deleted_despite_ended_starts_and_starts_elsewhere(
    database: Database, user: ApiUser, other_user: ApiUser, sandbox: Sandbox, conversation: Conversation
) -> None:
    make_start_task(database, user, sandbox, stage=Stage.ERROR)
    make_start_task(database, user, make_sandbox(database, user))
    make_start_task(database, other_user, make_sandbox(database, other_user))
    delete(database, user, conversation)
    assert as_stored(database, sandbox).desired == Desired.DELETED


def test_deletion_of_a_start_task_is_in_the_change_feed(
    database: Database, user: ApiUser, sandbox: Sandbox, conversation: Conversation
) -> None:
    task = make_start_task(database, user, sandbox, stage=Stage.READY, conversation_id=conversation.id)
    delete(database, user, conversation)
    with database.reading() as session:
        entries = session.exec(select(ChangeEntry).where(ChangeEntry.row_id == task.id)).all()
    assert [(entry.owner_id, entry.kind, entry.status) for entry in entries] == [(user.id, "start_task", "deleting")]


def test_starts_of_children_are_found_without_their_requests(
    database: Database, user: ApiUser, sandbox: Sandbox, conversation: Conversation
) -> None:
    texts: list[str] = []
    requested = {"parent_conversation_id": conversation.id, "initial_message": {"content": [{"text": "NUL: \0"}]}}
    shown = StartRequest.model_validate(requested).shown()
    quoted = f'"parent_conversation_id":"{conversation.id}"'
    renamed = {start_tasks.SENT_TITLE: quoted} | shown | {"title": quoted}
    unrelated = [{}, shown | {"parent_conversation_id": new_id()}, shown | {"parent_conversation_id": None}]
    unrelated += [{start_tasks.SENT_TITLE: quoted} | request for request in unrelated[1:]]
    children = [make_start_task(database, user, sandbox, request=request) for request in (shown, renamed)]
    others = [make_start_task(database, user, sandbox, request=request) for request in unrelated]

    def note(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        texts.append(text)

    with database.transaction() as session:
        event.listen(database.engine, "before_cursor_execute", note)
        _, found = deletion._find_starts(session, {conversation.id}, user.id)
        event.remove(database.engine, "before_cursor_execute", note)
    assert found == {task.id for task in children}
    assert [text for text in texts if re.search(r"(?<!\()start_task\.request", text)] == []
    delete(database, user, conversation)
    assert all(as_stored(database, task).cancelled_at for task in children)
    assert not any(as_stored(database, task).cancelled_at for task in others)


def test_statements_bind_a_limited_number_of_values(
    database: Database, user: ApiUser, sandbox: Sandbox, conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.sql.bound_lists.MAX_VALUES", 10)
    bound: list[int] = []
    children = [make_conversation(database, user, sandbox, parent_id=conversation.id) for _ in range(CHILDREN)]
    ended, starting = [], []
    for child in children:
        ended.append(make_start_task(database, user, sandbox, stage=Stage.READY, conversation_id=child.id))
        starting.append(make_start_task(database, user, sandbox, request={"parent_conversation_id": child.id}))

    def count(_connection: Any, _cursor: Any, _text: str, values: Any, _context: Any, many: bool) -> None:
        bound.append(0 if many else len(values))

    event.listen(database.engine, "before_cursor_execute", count)
    jobs = delete(database, user, conversation)
    event.remove(database.engine, "before_cursor_execute", count)
    assert max(bound) <= MAX_BOUND
    # One job for each conversation, for each start, and for the sandbox that becomes empty.
    assert len(jobs) == (1 + CHILDREN) + CHILDREN + 1
    assert all(as_stored(database, row).deleted_at for row in (conversation, *children))
    assert all(as_stored(database, task).cancelled_at for task in starting)
    with database.reading() as session:
        assert not any(session.get(StartTask, task.id) for task in ended)


def test_chain_of_descendants_costs_a_limited_number_of_queries(
    database: Database, user: ApiUser, sandbox: Sandbox, conversation: Conversation
) -> None:
    chain = [conversation]
    for _ in range(2 * deletion.MAX_TARGETS):
        chain.append(make_conversation(database, user, sandbox, parent_id=chain[-1].id))
    searches: list[str] = []

    def note(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        searches.extend([text] if "conversation.parent_id IN" in text else [])

    event.listen(database.engine, "before_cursor_execute", note)
    delete(database, user, conversation)
    event.remove(database.engine, "before_cursor_execute", note)
    assert 0 < len(searches) <= deletion.MAX_TARGETS
    gone = [as_stored(database, one).deleted_at is not None for one in chain]
    assert gone == [place < deletion.MAX_TARGETS for place in range(len(chain))]
