"""Answers of the API that must be a success."""

from typing import Any

from fastapi.testclient import TestClient

from tests.factories import Person


def get_json(family: str, client: TestClient, person: Person, path: str = "", **params: Any) -> Any:
    """The document at a path below that of a family of routes."""
    answer = client.get(family + path, params=params, headers=person.headers)
    assert answer.status_code == 200, answer.text
    return answer.json()
