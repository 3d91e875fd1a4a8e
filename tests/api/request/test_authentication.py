"""Authentication: every operation requires a user's key, and users can't access each other's resources."""

from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

import pytest
from fastapi.testclient import TestClient
from sqlmodel import select

from api.limits.rates import RateLimit
from shared.clock import now
from shared.db.database import Database
from shared.models import ApiKey
from shared.sql.write_slots import caller
from tests.api.agent_reports import event_report
from tests.api.documented import FOR_SANDBOXES, FOR_USERS, KEYLESS
from tests.api.operations import all_operations, operations_with_a_body
from tests.factories import (
    ApiUser,
    make_conversation,
    make_event,
    make_sandbox,
    make_start_task,
    session_key_of,
)

LIST = "/api/v1/sandboxes/search"


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_operations_without_authentication_are_documented(client: TestClient) -> None:
    operations = all_operations(client)
    assert {str(one) for one in operations if one.is_open} == KEYLESS
    assert {str(one) for one in operations if one.is_webhook} == FOR_SANDBOXES


def test_every_operation_requires_a_users_key(client: TestClient, user: ApiUser, database: Database) -> None:
    sandbox = make_sandbox(database, user)
    key = session_key_of(sandbox)
    invalid = {
        "no key": {},
        "an empty key": {"X-Session-API-Key": ""},
        "a wrong key": _bearer("aw_wrong"),
        "a wrong key in the other header": {"X-Session-API-Key": "aw_wrong"},
        "a sandbox's key": {"X-Session-API-Key": key},
        "a sandbox's key as a bearer": _bearer(key),
        "another scheme": {"Authorization": f"Basic {user.key}"},
        "a wrong bearer beside a right key": _bearer("aw_wrong") | {"X-Session-API-Key": user.key},
    }
    client.app.state.context.limits.wrong_keys = RateLimit("wrong-key", 0, of="this address")  # type: ignore[attr-defined]
    closed = [one for one in all_operations(client) if not one.is_open and not one.is_webhook]
    assert {str(one) for one in closed} == FOR_USERS
    accepted = []
    for operation in closed:
        for name, headers in invalid.items():
            body: dict[str, str] | None = {} if operation.has_body else None
            response = client.request(operation.method, operation.url(any=sandbox.id), json=body, headers=headers)
            if response.status_code != 401 or not response.json()["detail"]:
                accepted.append(f"{operation} with {name}: {response.status_code}")
    assert accepted == []


def test_unauthenticated_request_with_an_invalid_body_is_a_401(client: TestClient) -> None:
    for operation in operations_with_a_body(client):
        for body in (b"{broken", b'{"secrets": 3}', b"[" * 10_000, b"\0"):
            response = client.request(operation.method, operation.url(any="0" * 32), content=body)
            assert response.status_code == 401, operation


def test_unauthenticated_request_with_an_invalid_query_is_a_401(client: TestClient, user: ApiUser) -> None:
    for path in (LIST, "/api/v1/app-conversations/search", "/api/v1/app-conversations/count"):
        wrong = f"{path}?limit=0&created_at__gte=never"
        assert client.get(wrong).status_code == 401
        assert client.get(wrong, headers=user.headers).status_code == 422
        assert client.get(wrong).status_code == 401


def test_health_is_open(client: TestClient) -> None:
    for path in ("/alive", "/health", "/ready", "/server_info"):
        assert client.get(path).status_code == 200


def test_key_is_accepted_in_either_header(client: TestClient, user: ApiUser) -> None:
    for headers in (_bearer(user.key), {"Authorization": f"bearer  {user.key} "}, {"X-Session-API-Key": user.key}):
        assert client.get(LIST, headers=headers).status_code == 200


def test_401_describes_how_to_authenticate(client: TestClient) -> None:
    response = client.get(LIST)
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert "Authorization: Bearer" in response.json()["detail"]


@pytest.mark.parametrize("column", ["revoked_at", "expires_at"])
def test_key_that_is_revoked_or_expired_is_a_401(
    client: TestClient, user: ApiUser, database: Database, column: str
) -> None:
    assert client.get(LIST, headers=user.headers).status_code == 200
    with database.transaction() as session:
        setattr(session.exec(select(ApiKey)).one(), column, now() - timedelta(seconds=1))
    assert client.get(LIST, headers=user.headers).status_code == 401


def test_last_use_of_a_key_is_recorded(client: TestClient, user: ApiUser, database: Database) -> None:
    before = now()
    assert client.get(LIST, headers=user.headers).status_code == 200
    with database.reading() as session:
        key = session.exec(select(ApiKey)).one()
    assert key.last_used_at is not None
    assert key.last_used_at >= before


def test_writes_of_a_sandbox_take_the_slots_of_its_owner(
    client: TestClient, user: ApiUser, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = make_conversation(database, user, sandbox := make_sandbox(database, user))
    callers: set[str | None] = set()

    class Slots:
        def slot(self, *_: object) -> AbstractContextManager[None]:
            callers.add(caller.get())
            return nullcontext()

    monkeypatch.setattr(database, "_slots", Slots())
    path, key = f"/api/v1/webhooks/events/{conversation.id}", {"X-Session-API-Key": session_key_of(sandbox)}
    assert client.post(path, json=[event_report()], headers=key).status_code == 200
    assert callers == {user.id}


def test_resources_of_other_users_are_a_404(
    client: TestClient, user: ApiUser, other_user: ApiUser, database: Database
) -> None:
    sandbox = make_sandbox(database, other_user)
    conversation = make_conversation(database, other_user, sandbox)
    make_event(database, conversation, id="e1")
    task = make_start_task(database, other_user, sandbox)
    api, missing = "/api/v1", []
    for method, path in (
        ("GET", f"{api}/sandboxes/{sandbox.id}"),
        ("GET", f"{api}/sandboxes/{sandbox.id}/transitions"),
        ("POST", f"{api}/sandboxes/{sandbox.id}/pause"),
        ("POST", f"{api}/sandboxes/{sandbox.id}/resume"),
        ("DELETE", f"{api}/sandboxes/{sandbox.id}"),
        ("GET", f"{api}/app-conversations/{conversation.id}"),
    ):
        theirs = client.request(method, path, headers=user.headers)
        unknown = client.request(method, path.replace(sandbox.id, "f" * 32), headers=user.headers)
        if theirs.status_code != 404:
            missing.append(f"{method} {path}: {theirs.status_code}")
        assert unknown.status_code == 404
    assert missing == []
    for path, nothing in (
        (f"{api}/sandboxes?id={sandbox.id}", [None]),
        (f"{api}/app-conversations?ids={conversation.id}", [None]),
        (f"{api}/app-conversations/start-tasks?ids={task.id}", [None]),
        (f"{api}/conversation/{conversation.id}/events?id=e1", [None]),
        (f"{api}/conversation/{conversation.id}/events/count", 0),
        (f"{api}/app-conversations/count", 0),
        (f"{api}/app-conversations/start-tasks/count", 0),
        (f"{api}/sandboxes/search", {"items": [], "next_page_id": None}),
        (f"{api}/app-conversations/start-tasks/search", {"items": [], "next_page_id": None}),
    ):
        assert client.get(path, headers=user.headers).json() == nothing
