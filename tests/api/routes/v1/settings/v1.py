"""Settings in V1's shapes, as clients send and read them, and as the database stores them."""

import json
from typing import Any

from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.users import settings_store
from shared.users.settings import StoredSettings
from tests.factories import VAULT, Person

PATH = "/api/v1/settings"


MASK = "**********"


JSON = {"Content-Type": "application/json"}


def post(client: TestClient, person: Person, body: Any, path: str = PATH) -> None:
    answer = client.post(path, json=body, headers=person.headers)
    assert (answer.status_code, answer.json()) == (200, {"message": "Settings stored"}), answer.text


def read(client: TestClient, person: Person, path: str = PATH) -> dict[str, Any]:
    answer = client.get(path, headers=person.headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def load(database: Database, person: Person) -> StoredSettings:
    with database.reading() as session:
        stored = settings_store.load(session, VAULT, person.id)
    assert stored is not None
    return stored


def refused(client: TestClient, person: Person, body: dict[str, Any]) -> list[str]:
    answer = client.post(PATH, content=json.dumps(body), headers=person.headers | JSON)
    assert answer.status_code == 422, answer.text
    return [".".join(entry["loc"]) for entry in answer.json()["detail"]]


def agent(**diff: Any) -> dict[str, Any]:
    return {"agent_settings_diff": diff}
