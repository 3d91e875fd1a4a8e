"""The secrets of its owner that a sandbox may read with its own key."""

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.models import Sandbox
from shared.states import Desired, Status
from tests.factories import ApiUser, make_sandbox, session_key_of


@pytest.fixture(autouse=True)
def _saved(client: TestClient, user: ApiUser) -> None:
    for body in ({"name": "A", "value": "plain-a\n", "description": "a"}, {"name": "gitlab_token", "value": "own"}):
        assert client.post("/api/v1/secrets", json=body, headers=user.headers).status_code == 201
    tokens = {"github": "plain-github", "gitlab": "plain-gitlab", "forgejo": {"host": "code.example.com"}}
    body_of_tokens = {"provider_tokens": tokens}
    path = "/api/v1/secrets/git-providers"
    assert client.post(path, json=body_of_tokens, headers=user.headers).status_code == 200


def path_of(sandbox: Sandbox, name: str = "") -> str:
    return f"/api/v1/sandboxes/{sandbox.id}/settings/secrets{name}"


def key_of(sandbox: Sandbox) -> dict[str, str]:
    return {"X-Session-API-Key": session_key_of(sandbox)}


def test_names_are_listed(client: TestClient, sandbox: Sandbox) -> None:
    assert client.get(path_of(sandbox), headers=key_of(sandbox)).json() == {
        "secrets": [
            {"name": "A", "description": "a"},
            {"name": "gitlab_token", "description": None},
            {"name": "github_token", "description": None},
        ]
    }


def test_values_are_plain_text(client: TestClient, sandbox: Sandbox) -> None:
    for name, value in (("A", "plain-a\n"), ("github_token", "plain-github"), ("gitlab_token", "own")):
        response = client.get(path_of(sandbox, f"/{name}"), headers=key_of(sandbox))
        assert (response.status_code, response.text) == (200, value)
        assert response.headers["Content-Type"].startswith("text/plain")
    for name in ("B", "forgejo_token", "bitbucket_token", "a"):
        assert client.get(path_of(sandbox, f"/{name}"), headers=key_of(sandbox)).status_code == 404


def test_running_sandbox_reads_its_owner_s_secrets_and_no_other_s(
    client: TestClient, database: Database, user: ApiUser, other_user: ApiUser, sandbox: Sandbox
) -> None:
    sibling, theirs = make_sandbox(database, user), make_sandbox(database, other_user)
    paused = make_sandbox(database, user, status=Status.PAUSED)
    deleted = make_sandbox(database, user, desired=Desired.DELETED)
    member = make_sandbox(database, user, owner_id=None)
    for headers, where, status in (
        ({}, sandbox, 401),
        (user.headers, sandbox, 401),
        ({"X-Session-API-Key": user.key}, sandbox, 401),
        (key_of(sibling), sandbox, 403),
        (key_of(theirs), sandbox, 403),
        (key_of(paused), paused, 401),
        (key_of(deleted), deleted, 401),
        (key_of(member), member, 401),
    ):
        for path in (path_of(where), path_of(where, "/A")):
            response = client.get(path, headers=headers)
            assert (response.status_code, "plain" in response.text) == (status, False)
    assert client.get(path_of(theirs, "/A"), headers=key_of(theirs)).status_code == 404
