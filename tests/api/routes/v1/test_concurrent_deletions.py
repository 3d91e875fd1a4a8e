"""DELETE of a conversation at the moment at which its start succeeds."""

import pytest
from fastapi.testclient import TestClient
from sqlmodel import Session

from shared.conversations import queries as conversation_queries
from shared.conversations import start_tasks
from shared.db.database import Database
from shared.models import Sandbox
from shared.states import Stage
from tests.factories import ApiUser, make_conversation, make_start_task
from tests.interleaving import overlap_call
from tests.rows import as_stored


@pytest.mark.parametrize("path", ["/api/v1/app-conversations", "/api/conversations"])
def test_conversation_that_becomes_ready_is_deleted(
    client: TestClient, user: ApiUser, sandbox: Sandbox, database: Database, path: str
) -> None:
    task = make_start_task(database, user, sandbox, stage=Stage.STARTING_CONVERSATION)
    conversation = make_conversation(database, user, sandbox, id=task.conversation_id, listed=False)

    def make_ready(session: Session) -> None:
        start_tasks.advance(session, task, Stage.READY)
        conversation_queries.publish(session, task.conversation_id)

    def delete() -> tuple[int, object]:
        response = client.delete(f"{path}/{task.conversation_id}", headers=user.headers)
        return response.status_code, response.json()

    _, (status, body) = overlap_call(database, make_ready, delete)
    assert status == 200, body
    assert as_stored(database, conversation).deleted_at is not None
