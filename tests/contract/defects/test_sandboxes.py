"""Sandboxes and their keys."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.request.context import Context
from shared.db.database import Database
from shared.models import Sandbox
from shared.states import Desired, NodeStatus, Reason, Status
from tests.factories import ApiUser, make_conversation, make_node, make_sandbox, make_spec, session_key_of
from tests.rows import as_stored
from tests.waiting import eventually

SANDBOXES = "/api/v1/sandboxes"
WAITING = 25


def test_defect_02_delete_is_stored_in_a_row(
    client: TestClient, database: Database, user: ApiUser, sandbox: Sandbox
) -> None:
    # No worker executes the delete in this test, and this process may end at any time: the sweep finds the row.
    assert client.delete(f"{SANDBOXES}/{sandbox.id}", headers=user.headers).status_code == 200
    stored = as_stored(database, sandbox)
    assert stored.desired == Desired.DELETED
    assert stored.due_at is not None


@pytest.mark.usefixtures("spec", "node")
def test_defect_04_waiting_for_a_start_uses_no_database_connection(
    client: TestClient, context: Context, user: ApiUser
) -> None:
    # More requests than the pool has connections.
    with ThreadPoolExecutor(WAITING) as threads:
        waiting = [threads.submit(client.post, f"{SANDBOXES}?wait=60", headers=user.headers) for _ in range(WAITING)]
        eventually(lambda: _count(client, user) == WAITING)
        assert not any(response.done() for response in waiting)
        assert client.get(f"{SANDBOXES}/search", headers=user.headers).status_code == 200
        assert client.post("/api/v1/settings", json={}, headers=user.headers).status_code == 200
        assert client.portal is not None
        client.portal.call(context.waiter.close)
    assert {response.result().status_code for response in waiting} == {200}


def test_defect_06_page_of_sandboxes_sends_no_request_to_them(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    # Nothing listens at their addresses: requests to them would wait, and would not yield RUNNING.
    made = [make_sandbox(database, user).id for _ in range(30)]
    found = client.get(f"{SANDBOXES}/search?limit=10", headers=user.headers).json()
    assert [item["id"] for item in found["items"]] == made[:-11:-1]
    assert {item["status"] for item in found["items"]} == {"RUNNING"}


def test_defect_07_silent_engine_is_not_taken_for_an_empty_one(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    make_node(database, "lost", status=NodeStatus.LOST)
    lost = make_sandbox(database, user, node_id="lost", status=Status.ERROR, reason=Reason.NODE_LOST, detail="silent")
    runs = make_sandbox(database, user)
    found = client.get(f"{SANDBOXES}/search", headers=user.headers).json()["items"]
    assert [(item["id"], item["status"], item["reason"]) for item in found] == [
        (runs.id, "RUNNING", None),
        (lost.id, "ERROR", "node_lost"),
    ]
    batch = client.get(SANDBOXES, params={"id": [lost.id, runs.id]}, headers=user.headers).json()
    assert [item["id"] for item in batch] == [lost.id, runs.id]


def test_defect_08_session_key_is_found_by_its_digest(client: TestClient, sandbox: Sandbox) -> None:
    key = session_key_of(sandbox)
    path = f"/api/v1/sandboxes/{sandbox.id}/settings/secrets"
    for presented, status in ((key, 200), (key[:-1], 401), (key.upper(), 401), (sandbox.session_key_digest, 401)):
        assert client.get(path, headers={"X-Session-API-Key": presented}).status_code == status
    assert key not in (sandbox.session_key, sandbox.session_key_digest)


@pytest.mark.usefixtures("spec", "node")
def test_defect_09_resume_of_a_running_sandbox_pauses_nothing(
    context: Context, database: Database, user: ApiUser
) -> None:
    limits = context.settings.model_copy(update={"quota_running": 2, "quota_policy": "pause_oldest"})
    running = [make_sandbox(database, user) for _ in range(2)]
    with TestClient(create_app(replace(context, settings=limits)), raise_server_exceptions=False) as client:
        for sandbox in running:
            assert client.post(f"{SANDBOXES}/{sandbox.id}/resume", headers=user.headers).status_code == 200
        assert client.post(f"{SANDBOXES}/{'0' * 32}/resume", headers=user.headers).status_code == 404
    assert {as_stored(database, sandbox).desired for sandbox in running} == {Desired.RUNNING}


def test_defect_11_users_see_only_their_own_sandboxes(
    client: TestClient, user: ApiUser, other_user: ApiUser, sandbox: Sandbox
) -> None:
    shown = client.get(SANDBOXES, params={"id": sandbox.id}, headers=user.headers).json()
    assert shown[0]["created_by_user_id"] == user.id
    assert client.get(SANDBOXES, params={"id": sandbox.id}, headers=other_user.headers).json() == [None]
    key = {"X-Session-API-Key": session_key_of(sandbox)}
    exposed = client.get("/api/v1/users/me?expose_secrets=true", headers=user.headers | key)
    scoped = client.get(f"{SANDBOXES}/{sandbox.id}/settings/secrets", headers=key)
    assert (exposed.status_code, scoped.status_code) == (200, 200)


def test_defect_12_user_key_and_session_key_can_be_sent_together(
    client: TestClient, user: ApiUser, sandbox: Sandbox
) -> None:
    key = {"X-Session-API-Key": session_key_of(sandbox)}
    for path in (f"{SANDBOXES}/{sandbox.id}/settings/secrets", f"{SANDBOXES}/search", "/api/v1/users/me"):
        assert client.get(path, headers=user.headers | key).status_code == 200


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("image", ["busybox", "registry.example:5000/a/b", f"image@sha256:{'0' * 64}"])
def test_defect_22_image_without_a_tag_is_usable(
    client: TestClient, database: Database, user: ApiUser, image: str
) -> None:
    make_spec(database, image)
    started = client.post(SANDBOXES, params={"sandbox_spec_id": image}, headers=user.headers)
    assert (started.status_code, started.json()["sandbox_spec_id"]) == (200, image)
    [listed] = client.get(f"{SANDBOXES}/search", headers=user.headers).json()["items"]
    assert listed["sandbox_spec_id"] == image


@pytest.mark.parametrize("query", ["", "?sandbox_id={id}", "?sandbox_id=another"])
def test_defect_23_path_determines_the_sandbox_to_delete(
    client: TestClient, database: Database, user: ApiUser, query: str
) -> None:
    sandbox = make_sandbox(database, user)
    response = client.delete(f"{SANDBOXES}/{sandbox.id}{query.format(id=sandbox.id)}", headers=user.headers)
    assert (response.status_code, response.json()) == (200, {"success": True})
    assert as_stored(database, sandbox).desired == Desired.DELETED


def test_defect_24_conversations_of_a_deleted_sandbox_show_missing(
    client: TestClient, database: Database, user: ApiUser, sandbox: Sandbox
) -> None:
    conversation = make_conversation(database, user, sandbox)
    client.delete(f"{SANDBOXES}/{sandbox.id}", headers=user.headers)
    [shown] = client.get("/api/v1/app-conversations", params={"ids": conversation.id}, headers=user.headers).json()
    assert (shown["sandbox_status"], shown["conversation_url"], shown["session_api_key"]) == ("MISSING", None, None)


def test_defect_32_spec_shows_nothing_of_the_servers_environment(
    client: TestClient, database: Database, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LLM_API_KEY", "OH_AGENT_SERVER_ENV", "LMNR_PROJECT_API_KEY"):
        monkeypatch.setenv(name, '{"A": "plain"}')
    make_spec(database, env={"LANG": "C"})
    response = client.get("/api/v1/sandbox-specs/search", headers=user.headers)
    assert [spec["initial_env"] for spec in response.json()["items"]] == [{"LANG": "C"}]
    assert "plain" not in response.text


def test_defect_48_server_info_does_not_sleep(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_seconds: float) -> None:
        raise AssertionError("the server must not sleep")

    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", fail)
        first, second = (client.get("/server_info").json() for _ in range(2))
    assert second["uptime"] > first["uptime"]
    assert first["idle_time"] == second["idle_time"] == 0


@pytest.mark.parametrize("status", [Status.RUNNING, Status.PAUSED, Status.ERROR])
def test_defect_52_one_sandbox_is_read_by_its_id(
    client: TestClient, database: Database, user: ApiUser, status: Status
) -> None:
    sandbox = make_sandbox(database, user, status=status)
    shown = client.get(f"{SANDBOXES}/{sandbox.id}", headers=user.headers).json()
    assert (shown["id"], shown["status"]) == (sandbox.id, status)


@pytest.mark.usefixtures("spec", "node")
def test_defect_52_starts_with_one_idempotency_key_are_one_sandbox(client: TestClient, user: ApiUser) -> None:
    headers = user.headers | {"Idempotency-Key": "a-key"}
    first, second = (client.post(SANDBOXES, headers=headers).json() for _ in range(2))
    assert first["id"] == second["id"]
    assert len(client.get(f"{SANDBOXES}/search", headers=user.headers).json()["items"]) == 1


def _count(client: TestClient, user: ApiUser) -> int:
    return len(client.get(f"{SANDBOXES}/search", headers=user.headers).json()["items"])
