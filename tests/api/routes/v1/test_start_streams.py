"""POST /api/v1/app-conversations/stream-start: a start whose stages are streamed in the response."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlmodel import select

from api.request.context import Context
from api.routes.v1 import start_streams
from shared.db.database import Database
from shared.models import StartTask
from shared.states import Stage
from shared.users import settings_store
from tests.doubles import RecordingPublisher
from tests.factories import VAULT, ApiUser
from tests.waiting import eventually

PATH = "/api/v1/app-conversations/stream-start"

pytestmark = pytest.mark.usefixtures("spec", "node")


@pytest.fixture(autouse=True)
def _ready(database: Database, user: ApiUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_streams, "POLL_SECONDS", 0.02)
    with database.transaction() as session:
        settings_store.change(session, VAULT, user.id, {"llm_model": "m", "llm_api_key": "k"})


def move(database: Database, stage: Stage) -> None:
    with database.transaction() as session:
        task = session.exec(select(StartTask)).one()
        task.stage = stage
        task.due_at = None


def delete_task(database: Database) -> None:
    """Delete the task as the deletion of its conversation does."""
    with database.transaction() as session:
        session.delete(session.exec(select(StartTask)).one())


def is_accepted(database: Database) -> bool:
    with database.reading() as session:
        return session.exec(select(StartTask.id)).first() is not None


def stream(client: TestClient, user: ApiUser, **body: Any) -> Any:
    return client.post(PATH, json=body, headers=user.headers)


@pytest.mark.parametrize("last", [Stage.READY, Stage.ERROR])
def test_stream_follows_a_start_to_its_end(
    client: TestClient, database: Database, user: ApiUser, publisher: RecordingPublisher, last: Stage
) -> None:
    with ThreadPoolExecutor(1) as pool:
        streaming = pool.submit(stream, client, user, title="A title")
        eventually(lambda: is_accepted(database))
        move(database, Stage.WAITING_FOR_SANDBOX)
        move(database, last)
        response = streaming.result(30)
    assert (response.status_code, response.headers["Content-Type"]) == (200, "application/json")
    assert response.text.startswith("[\n{")
    tasks = response.json()
    assert [tasks[0]["status"], tasks[-1]["status"]] == ["WORKING", last]
    assert len({task["id"] for task in tasks}) == 1
    assert len({task["status"] for task in tasks}) == len(tasks)
    assert tasks[0]["request"]["title"] == "A title"
    assert publisher.jobs


def test_request_that_is_repeated_under_its_key_follows_the_same_start(
    client: TestClient, database: Database, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_streams, "MAX_SECONDS", 0.1)
    headers = user.headers | {"Idempotency-Key": "once"}
    first = client.post(PATH, json={"title": "A title"}, headers=headers).json()
    move(database, Stage.READY)
    again = client.post(PATH, json={"title": "A title"}, headers=headers).json()
    assert [task["status"] for task in again] == ["WORKING", "READY"]
    assert {task["id"] for task in again} == {task["id"] for task in first}


def test_stream_ends_when_the_conversation_is_deleted(client: TestClient, database: Database, user: ApiUser) -> None:
    with ThreadPoolExecutor(1) as pool:
        streaming = pool.submit(stream, client, user)
        eventually(lambda: is_accepted(database))
        delete_task(database)
        response = streaming.result(30)
    assert [task["status"] for task in response.json()] == ["WORKING"]


def test_stream_ends_when_the_process_stops(
    client: TestClient, database: Database, user: ApiUser, context: Context
) -> None:
    with ThreadPoolExecutor(1) as pool:
        streaming = pool.submit(stream, client, user)
        eventually(lambda: is_accepted(database))
        assert client.portal is not None
        client.portal.call(context.leave)
        response = streaming.result(30)
    assert [task["status"] for task in response.json()] == ["WORKING"]


def test_stream_ends_after_its_max_duration(client: TestClient, user: ApiUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_streams, "MAX_SECONDS", 0.1)
    assert [task["status"] for task in stream(client, user).json()] == ["WORKING"]


def test_wrong_request_is_refused_before_the_stream_begins(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    for body, status in (({"title": 7}, 422), ({"parent_conversation_id": "0" * 32}, 404)):
        response = stream(client, user, **body)
        assert response.status_code == status
        assert response.json()["detail"]
    assert not is_accepted(database)
