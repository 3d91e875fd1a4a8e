"""Methods: HEAD works wherever GET does, and a 405 lists all methods of its path."""

from collections.abc import Iterator

import httpx
import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.request.context import Context
from shared.models import Conversation, Sandbox
from tests.api.operations import all_operations
from tests.factories import ApiUser, session_key_of
from tests.services.asgi import serving

CHANGES = "/api/v1/changes"
SECONDS = 30.0


@pytest.fixture
def listening(context: Context) -> Iterator[httpx.Client]:
    """A client with one connection to the application behind a real server."""
    with serving(create_app(context), lifespan="off") as url, httpx.Client(base_url=url, timeout=SECONDS) as client:
        yield client


def test_head_equals_get_without_a_body(
    client: TestClient, user: ApiUser, sandbox: Sandbox, conversation: Conversation
) -> None:
    operations = [one for one in all_operations(client) if one.method == "GET" and one.path != CHANGES]
    assert {"/alive", "/health", "/ready", "/login", "/metrics", "/api/v1/settings"} <= {one.path for one in operations}
    for operation in operations:
        url = operation.url(any=conversation.id, sandbox_id=sandbox.id)
        for headers in ({}, user.headers, {"X-Session-API-Key": session_key_of(sandbox)}):
            responses = [
                client.request(method, url, headers=headers, follow_redirects=False) for method in ("GET", "HEAD")
            ]
            get, head = [(one.status_code, one.headers.get("Content-Type")) for one in responses]
            assert (head, responses[1].content) == (get, b""), operation


def test_head_leaves_its_connection_usable(listening: httpx.Client, user: ApiUser) -> None:
    for path in ("/alive", CHANGES, "/api/v1/app-conversations/search", "/nothing", "/alive"):
        head = listening.head(path, headers=user.headers)
        assert (head.status_code, head.content) == (404 if path == "/nothing" else 200, b""), path
    assert listening.get("/alive").status_code == 200


@pytest.mark.parametrize("path", ["/api/v1/sandboxes/search", "/api/keys"])
def test_head_with_a_body_succeeds(listening: httpx.Client, user: ApiUser, path: str) -> None:
    assert listening.request("HEAD", path, json={}, headers=user.headers, timeout=10).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/api/v1/settings", "GET, HEAD, POST"),
        ("POST", "/alive", "GET, HEAD"),
        ("GET", "/api/v1/sandboxes/x/pause", "POST"),
        ("HEAD", "/api/v1/sandboxes/x/pause", "POST"),
        ("PUT", "/api/v1/sandboxes/x", "DELETE, GET, HEAD, PATCH"),
        ("PUT", "/api/conversations/x", "DELETE, GET, HEAD, PATCH"),
    ],
)
def test_405_lists_all_methods_of_its_path(
    client: TestClient, user: ApiUser, method: str, path: str, allowed: str
) -> None:
    response = client.request(method, path, headers=user.headers)
    assert (response.status_code, response.headers["Allow"]) == (405, allowed)
