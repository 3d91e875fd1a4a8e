"""A client's requests to start conversations."""

from functools import partial
from typing import Any

from fastapi.testclient import TestClient
from sqlmodel import select

from shared.db.database import Database
from shared.models import Sandbox, StartTask
from tests.api.responses import get_json
from tests.factories import (
    ApiUser,
)

PATH = "/api/v1/app-conversations"


_get = partial(get_json, PATH)


def _start(client: TestClient, user: ApiUser, **request: Any) -> Any:
    response = client.post(PATH, json=request, headers=user.headers)
    assert response.status_code == 200, response.text
    return response.json()


def _status(client: TestClient, user: ApiUser, **request: Any) -> int:
    return int(client.post(PATH, json=request, headers=user.headers).status_code)


def _task(database: Database, task_id: str) -> StartTask:
    with database.reading() as session:
        return session.get_one(StartTask, task_id)


def _all_sandboxes(database: Database) -> list[Sandbox]:
    with database.reading() as session:
        return list(session.exec(select(Sandbox)).all())
