"""Deletion of conversations with very many sub-conversations, as hostile sandboxes may report them."""

from typing import Any

import pytest
from sqlalchemy import event

from shared.clock import now
from shared.conversations import deletion
from shared.db.database import Database
from shared.models import Conversation, Sandbox, StartTask
from shared.states import Stage
from tests.factories import Person, make_conversation, make_start_task
from tests.rows import as_stored

CHILDREN, MAX_BOUND = 30, 25


def test_statements_bind_a_limited_number_of_values(
    database: Database, user: Person, sandbox: Sandbox, conversation: Conversation, monkeypatch: pytest.MonkeyPatch
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
    with database.transaction() as session:
        jobs = deletion.delete_conversation(session, conversation.id, user.id, due_at=now())
    event.remove(database.engine, "before_cursor_execute", count)
    assert max(bound) <= MAX_BOUND
    # The job of each conversation, of each start, and of the sandbox that becomes empty.
    assert len(jobs) == (1 + CHILDREN) + CHILDREN + 1
    assert all(as_stored(database, row).deleted_at for row in (conversation, *children))
    assert all(as_stored(database, task).cancelled_at for task in starting)
    with database.reading() as session:
        assert not any(session.get(StartTask, task.id) for task in ended)
