"""Requests to the API that must succeed."""

from typing import Any

from fastapi.testclient import TestClient

from tests.factories import Person


def get_json(family: str, client: TestClient, person: Person, path: str = "", **params: Any) -> Any:
    """Return the document at a path below the common path of routes."""
    answer = client.get(family + path, params=params, headers=person.headers)
    assert answer.status_code == 200, answer.text
    return answer.json()
