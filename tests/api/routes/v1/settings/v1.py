"""Settings in V1's shapes, as clients send and read them, and as the database stores them."""

import json
from typing import Any

from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.users import settings_store
from shared.users.settings import StoredSettings
from tests.factories import VAULT, ApiUser

PATH = "/api/v1/settings"


MASK = "**********"


JSON = {"Content-Type": "application/json"}


def post(client: TestClient, user: ApiUser, body: Any, path: str = PATH) -> None:
    response = client.post(path, json=body, headers=user.headers)
    assert (response.status_code, response.json()) == (200, {"message": "Settings stored"}), response.text


def read(client: TestClient, user: ApiUser, path: str = PATH) -> dict[str, Any]:
    response = client.get(path, headers=user.headers)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def load(database: Database, user: ApiUser) -> StoredSettings:
    with database.reading() as session:
        stored = settings_store.load(session, VAULT, user.id)
    assert stored is not None
    return stored


def refused(client: TestClient, user: ApiUser, body: dict[str, Any]) -> list[str]:
    response = client.post(PATH, content=json.dumps(body), headers=user.headers | JSON)
    assert response.status_code == 422, response.text
    return [".".join(entry["loc"]) for entry in response.json()["detail"]]


def agent(**diff: Any) -> dict[str, Any]:
    return {"agent_settings_diff": diff}
