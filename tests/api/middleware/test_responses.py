"""`Cache-Control: no-store` on every response: its content changes at any time, and it may contain keys."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.paths import DOCS_ASSETS
from shared.db.database import Database
from shared.models import Conversation, Sandbox
from tests.api.operations import all_operations
from tests.factories import Person

CHANGES = "/api/v1/changes"


def test_response_of_every_operation_is_not_cacheable(
    client: TestClient, user: Person, sandbox: Sandbox, conversation: Conversation
) -> None:
    for operation in all_operations(client):
        if operation.path == CHANGES:
            continue
        url = operation.url(any=conversation.id, sandbox_id=sandbox.id)
        body: Any = {} if operation.has_body else None
        for headers in ({}, user.headers):
            answer = client.request(operation.method, url, json=body, headers=headers, follow_redirects=False)
            assert answer.headers.get_list("Cache-Control") == ["no-store"], (operation, answer.status_code)


@pytest.mark.parametrize(("method", "path"), [("GET", "/api/nothing"), ("PUT", "/api/keys"), ("HEAD", "/alive")])
def test_error_response_is_not_cacheable(client: TestClient, method: str, path: str) -> None:
    assert client.request(method, path).headers["Cache-Control"] == "no-store"


@pytest.mark.usefixtures("sandbox")
def test_response_from_the_response_cache_is_not_cacheable(client: TestClient, user: Person) -> None:
    for _ in range(2):
        answer = client.get("/api/v1/sandboxes/search", headers=user.headers)
        assert (answer.status_code, answer.headers["Cache-Control"]) == (200, "no-store")


def test_internal_error_is_not_cacheable(
    client: TestClient, user: Person, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "transaction", None)
    answer = client.post("/api/v1/sandboxes", headers=user.headers)
    assert (answer.status_code, answer.headers["Cache-Control"]) == (500, "no-store")


def test_docs_assets_are_cacheable(client: TestClient) -> None:
    answer = client.get(f"{DOCS_ASSETS}/swagger-ui.css")
    assert (answer.status_code, "Cache-Control" in answer.headers, "ETag" in answer.headers) == (200, False, True)
