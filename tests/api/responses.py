"""Requests to the API that must succeed."""

from typing import Any

from fastapi.testclient import TestClient

from tests.factories import ApiUser


def get_json(family: str, client: TestClient, user: ApiUser, path: str = "", **params: Any) -> Any:
    """Return the document at a path below the common path of routes."""
    response = client.get(family + path, params=params, headers=user.headers)
    assert response.status_code == 200, response.text
    return response.json()
