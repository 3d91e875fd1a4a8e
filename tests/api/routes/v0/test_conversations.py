"""V0's conversations: start, list, rename and stop, on the same rows as V1's."""

import json
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from fastapi.testclient import TestClient
from sqlmodel import select

from shared.crypto import Vault
from shared.db.database import Database
from shared.models import Conversation, StartTask
from shared.queue.jobs import DeleteConversation, DeleteSandbox, PauseSandbox, ResumeSandbox
from shared.states import Desired, Reason, Stage, Status
from shared.users import settings_store
from tests.doubles import RecordingPublisher
from tests.factories import ApiUser, make_conversation, make_sandbox, make_start_task
from tests.fakes.scripted_agent import ScriptedAgent
from tests.rows import as_stored

PATH = "/api/conversations"


@pytest.fixture
def _with_a_model(database: Database, vault: Vault, user: ApiUser) -> None:
    with database.transaction() as session:
        settings_store.change(session, vault, user.id, {"llm_model": "m", "llm_api_key": "k"})


def send(client: TestClient, user: ApiUser, method: str, path: str, body: Any = None) -> Any:
    return client.request(method, f"{PATH}{path}", json=body, headers=user.headers)


def the_task(database: Database) -> StartTask:
    with database.reading() as session:
        return session.exec(select(StartTask)).one()


@pytest.mark.usefixtures("_with_a_model", "spec", "node")
def test_start_equals_a_start_of_v1(client: TestClient, database: Database, user: ApiUser) -> None:
    body = {
        "repository": "acme/app",
        "git_provider": "gitlab",
        "selected_branch": "main",
        "initial_user_msg": "Hello",
        "image_urls": ["data:image/png;base64,AA=="],
        "conversation_instructions": "Be brief.",
        "replay_json": None,
        "create_microagent": None,
        "mcp_config": None,
    }
    response = send(client, user, "POST", "", body)
    task = the_task(database)
    assert (response.status_code, response.json()) == (
        200,
        {
            "status": "ok",
            "conversation_id": task.conversation_id,
            "message": None,
            "conversation_status": "STARTING",
        },
    )
    known = {name: task.request[name] for name in ("selected_repository", "selected_branch", "git_provider", "trigger")}
    assert known == {
        "selected_repository": "acme/app",
        "selected_branch": "main",
        "git_provider": "gitlab",
        "trigger": "gui",
    }
    assert task.request["system_message_suffix"] == "Be brief."
    assert [part["type"] for part in task.request["initial_message"]["content"]] == ["text", "image"]
    found = send(client, user, "GET", f"/{task.conversation_id}").json()
    assert (found["status"], found["selected_repository"], found["conversation_version"]) == (
        "STARTING",
        "acme/app",
        "V1",
    )


@pytest.mark.usefixtures("_with_a_model", "spec", "node")
def test_suggested_task_takes_precedence_over_a_message(client: TestClient, database: Database, user: ApiUser) -> None:
    task = {"git_provider": "github", "task_type": "OPEN_ISSUE", "repo": "acme/app", "issue_number": 7, "title": "t"}
    response = send(client, user, "POST", "", {"suggested_task": task, "initial_user_msg": "Hello"})
    assert response.status_code == 200
    request = the_task(database).request
    assert (request["trigger"], request["selected_repository"]) == ("suggested_task", "acme/app")
    assert "Issue #7" in request["initial_message"]["content"][0]["text"]


@pytest.mark.usefixtures("_with_a_model", "spec", "node")
def test_repeated_start_with_an_id_or_idempotency_key_is_one_start(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    chosen = uuid4()
    for _ in range(2):
        response = send(client, user, "POST", "", {"conversation_id": str(chosen)})
        assert response.json()["conversation_id"] == chosen.hex
    headers = user.headers | {"Idempotency-Key": "once"}
    first, second = (client.post(PATH, json={}, headers=headers).json() for _ in range(2))
    assert first == second
    with database.reading() as session:
        assert len(session.exec(select(StartTask)).all()) == 2


@pytest.mark.usefixtures("spec", "node")
def test_start_without_settings_is_a_400(client: TestClient, user: ApiUser) -> None:
    response = send(client, user, "POST", "", {"initial_user_msg": "Hello"})
    body = response.json()
    assert (response.status_code, body["status"], body["msg_id"]) == (400, "error", "CONFIGURATION$SETTINGS_NOT_FOUND")
    assert "llm_api_key" in body["message"]
    assert send(client, user, "GET", f"/{body['conversation_id']}").json()["status"] == "ERROR"


@pytest.mark.usefixtures("spec", "node")
def test_start_without_settings_is_not_stored_under_its_key(
    client: TestClient, database: Database, vault: Vault, user: ApiUser
) -> None:
    headers = user.headers | {"Idempotency-Key": "once"}
    assert client.post(PATH, json={}, headers=headers).status_code == 400
    with database.transaction() as session:
        settings_store.change(session, vault, user.id, {"llm_model": "m", "llm_api_key": "k"})
    corrected, again = (client.post(PATH, json={}, headers=headers) for _ in range(2))
    assert (corrected.status_code, corrected.json()["conversation_status"]) == (200, "STARTING")
    assert again.json() == corrected.json()


@pytest.mark.parametrize(
    "body",
    [
        {"unknown": 1},
        {"replay_json": "[]"},
        {"create_microagent": {"repo": "a/b"}},
        {"mcp_config": {}},
        {"repository": "x"},
    ],
)
def test_options_that_are_not_supported_are_refused(
    client: TestClient, database: Database, user: ApiUser, body: Any
) -> None:
    response = send(client, user, "POST", "", body)
    assert (response.status_code, response.json()["detail"][0]["loc"][-1]) == (422, next(iter(body)))
    with database.reading() as session:
        assert session.exec(select(StartTask)).all() == []


STATUSES = [
    (Status.STARTING, "STARTING"),
    (Status.RUNNING, "RUNNING"),
    (Status.PAUSED, "STOPPED"),
    (Status.ERROR, "ERROR"),
    (Status.DELETED, "ARCHIVED"),
]


@pytest.mark.parametrize(("status", "word"), STATUSES)
def test_statuses_have_the_names_of_v0(
    client: TestClient, database: Database, user: ApiUser, status: Status, word: str
) -> None:
    row = make_conversation(database, user, make_sandbox(database, user, status=status), trigger="gui")
    found = send(client, user, "GET", f"/{row.id}").json()
    shown = client.get(f"/api/v1/app-conversations/{row.id}", headers=user.headers).json()
    assert found["status"] == word
    assert (found["conversation_id"], found["last_updated_at"]) == (row.id, shown["updated_at"])
    assert [found["url"], found["session_api_key"]] == [shown["conversation_url"], shown["session_api_key"]]
    assert [found] == send(client, user, "GET", "").json()["results"]


def test_lists_are_filtered_and_paged(
    client: TestClient, database: Database, user: ApiUser, other_user: ApiUser
) -> None:
    place = make_sandbox(database, user)
    make_conversation(database, other_user, make_sandbox(database, other_user))
    parent = make_conversation(database, user, place, selected_repository="acme/app", trigger="gui")
    later = parent.created_at + timedelta(seconds=1)
    child = make_conversation(database, user, place, parent_id=parent.id, trigger="slack", created_at=later)
    third = make_conversation(database, user, place, trigger="slack", created_at=later + timedelta(seconds=1))
    for query, expected in (
        ("", [third, parent]),
        ("?include_sub_conversations=true", [third, child, parent]),
        ("?selected_repository=acme/app", [parent]),
        ("?conversation_trigger=slack", [third]),
        ("?conversation_trigger=slack&selected_repository=acme/app", []),
    ):
        found = send(client, user, "GET", query).json()
        assert [item["conversation_id"] for item in found["results"]] == [row.id for row in expected], query
    page = send(client, user, "GET", "?limit=1").json()
    rest = send(client, user, "GET", f"?limit=1&page_id={page['next_page_id']}").json()
    assert (rest["results"][0]["conversation_id"], rest["next_page_id"]) == (parent.id, None)
    assert send(client, user, "GET", "?limit=101").status_code == 422


def test_unknown_conversation_is_null(
    client: TestClient, database: Database, user: ApiUser, other_user: ApiUser
) -> None:
    theirs = make_conversation(database, other_user, make_sandbox(database, other_user))
    beginning = make_start_task(database, other_user)
    lost = make_start_task(database, user, stage=Stage.READY)
    for unknown in (theirs.id, beginning.conversation_id, lost.conversation_id, "0" * 32):
        response = send(client, user, "GET", f"/{unknown}")
        assert (response.status_code, response.json()) == (200, None)
    assert send(client, user, "GET", "/nonsense").status_code == 400


def test_failed_start_has_the_status_error(client: TestClient, database: Database, user: ApiUser) -> None:
    task = make_start_task(database, user, stage=Stage.ERROR, reason=Reason.CLONE_FAILED, detail="no")
    assert send(client, user, "GET", f"/{task.conversation_id}").json()["status"] == "ERROR"


def test_title_is_changed(client: TestClient, database: Database, user: ApiUser, conversation: Conversation) -> None:
    assert send(client, user, "PATCH", f"/{conversation.id}", {"title": "New"}).json() is True
    assert as_stored(database, conversation).title == "New"
    for body in ({}, {"title": ""}, {"title": "x" * 201}, {"title": "x", "public": True}):
        assert send(client, user, "PATCH", f"/{conversation.id}", body).status_code == 422
    assert send(client, user, "PATCH", f"/{'0' * 32}", {"title": "x"}).status_code == 404


def test_deletion_deletes_the_sandbox(
    client: TestClient, database: Database, user: ApiUser, other_user: ApiUser, publisher: RecordingPublisher
) -> None:
    place = make_sandbox(database, user)
    row = make_conversation(database, user, place)
    for owner, unknown in ((other_user, row.id), (user, "0" * 32)):
        response = send(client, owner, "DELETE", f"/{unknown}")
        assert (response.status_code, response.json()) == (200, False)
    assert as_stored(database, place).desired == Desired.RUNNING
    assert send(client, user, "DELETE", f"/{row.id}").json() is True
    assert send(client, user, "GET", f"/{row.id}").json() is None
    assert as_stored(database, place).desired == Desired.DELETED
    assert {type(job) for job in publisher.jobs} == {DeleteConversation, DeleteSandbox}
    assert send(client, user, "DELETE", "/nonsense").status_code == 400


def test_stop_and_start_set_the_desired_state_of_the_sandbox(
    client: TestClient, database: Database, user: ApiUser, other_user: ApiUser, publisher: RecordingPublisher
) -> None:
    place = make_sandbox(database, user)
    row = make_conversation(database, user, place)
    for verb, desired, job in (("stop", Desired.PAUSED, PauseSandbox), ("start", Desired.RUNNING, ResumeSandbox)):
        response = send(client, user, "POST", f"/{row.id}/{verb}", {"providers_set": ["github"]})
        assert response.status_code == 200
        assert (response.json()["status"], response.json()["conversation_id"]) == ("ok", row.id)
        assert as_stored(database, place).desired == desired
        assert isinstance(publisher.jobs[-1], job)
        assert send(client, other_user, "POST", f"/{row.id}/{verb}").status_code == 404


def test_config_and_urls_of_the_sandbox_are_shown(client: TestClient, database: Database, user: ApiUser) -> None:
    urls = [
        {"name": "AGENT_SERVER", "url": "http://a:1", "port": 8000},
        {"name": "VSCODE", "url": "http://a:2", "port": 8001},
        {"name": "WORKER_1", "url": "http://a:3", "port": 8011},
    ]
    for status in (Status.RUNNING, Status.PAUSED, Status.DELETING, Status.DELETED):
        place = make_sandbox(database, user, status=status, exposed_urls=urls)
        path = f"http://testserver/sandbox/{place.id}"
        vscode, hosts = (f"{path}-8001", {f"{path}-8011": 8011}) if status == Status.RUNNING else (None, {})
        row = make_conversation(database, user, place)
        assert send(client, user, "GET", f"/{row.id}/config").json() == {"runtime_id": place.id, "session_id": row.id}
        assert send(client, user, "GET", f"/{row.id}/vscode-url").json() == {"vscode_url": vscode}
        assert send(client, user, "GET", f"/{row.id}/web-hosts").json() == {"hosts": hosts}


def test_agent_server_gets_the_same_requests_as_from_v1(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent
) -> None:
    path = f"POST /api/conversations/{UUID(conversation.id)}/events"
    changed = [{"status": "ADDED", "path": "a"}, {"status": "UPDATED", "path": "b"}]
    agent.responses = {
        path: (200, b"{}"),
        "GET /api/git/changes": (200, json.dumps(changed).encode()),
        "GET /api/git/diff": (200, b'{"modified": "x", "original": ""}'),
        "GET /api/file/download": (200, b"text"),
    }
    one = f"/{conversation.id}"
    assert send(client, user, "POST", f"{one}/message", {"message": "go on"}).json() == {"success": True}
    assert agent.got[-1][4]["content"] == [{"type": "text", "text": "go on", "cache_prompt": False}]
    found = send(client, user, "GET", f"{one}/git/changes").json()
    assert [item["status"] for item in found] == ["A", "M"]
    assert agent.got[-1][2] == "path=%2Fworkspace%2Fproject%2Fapp"
    assert send(client, user, "GET", f"{one}/git/diff?path=a.py").json() == {"modified": "x", "original": ""}
    assert agent.got[-1][2] == "path=%2Fworkspace%2Fproject%2Fapp%2Fa.py"
    assert send(client, user, "GET", f"{one}/select-file?file=a.py").json() == {"code": "text"}
    for response in ((500, b""), (200, b"null")):
        agent.responses = {"GET /api/git/changes": response}
        assert send(client, user, "GET", f"{one}/git/changes").status_code == 502
