"""V0's conversations exist from their POST on: clients list, rename, message and delete them before READY."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.conversations import queries as conversation_queries
from shared.db.database import Database
from shared.models import Sandbox, StartTask
from shared.states import Reason, Stage, Status
from tests.factories import ApiUser, make_conversation, make_sandbox, make_start_task
from tests.rows import as_stored

PATH = "/api/conversations"
FIRST = datetime(2026, 1, 1, microsecond=5, tzinfo=UTC)


@pytest.fixture
def place(database: Database, user: ApiUser) -> Sandbox:
    return make_sandbox(database, user, status=Status.STARTING)


@pytest.fixture
def task(database: Database, user: ApiUser, place: Sandbox) -> StartTask:
    return make_start_task(database, user, place, stage=Stage.WAITING_FOR_SANDBOX, request={"title": "First"})


def send(client: TestClient, user: ApiUser, method: str, path: str, body: Any = None) -> Any:
    return client.request(method, f"{PATH}{path}", json=body, headers=user.headers)


def listed(client: TestClient, user: ApiUser, query: str = "") -> list[str]:
    response = send(client, user, "GET", query)
    assert response.status_code == 200, response.text
    return [one["conversation_id"] for one in response.json()["results"]]


@pytest.mark.usefixtures("model_key", "spec", "node")
def test_conversation_is_usable_from_its_start_request_on(
    client: TestClient, user: ApiUser, other_user: ApiUser
) -> None:
    conversation_id = send(client, user, "POST", "", {"initial_user_msg": "Hello"}).json()["conversation_id"]
    one = f"/{conversation_id}"
    assert listed(client, user) == [conversation_id]
    assert send(client, user, "PATCH", one, {"title": "New"}).json() is True
    assert [send(client, user, "GET", one).json()[name] for name in ("title", "status")] == ["New", "STARTING"]
    found = send(client, user, "POST", f"{one}/start", {"providers_set": []})
    assert (found.status_code, found.json()["conversation_status"]) == (200, "STARTING")
    assert send(client, user, "POST", f"{one}/message", {"message": "go on"}).json() == {"success": True}
    names = send(client, user, "GET", f"{one}/config").json()
    assert names["session_id"] == conversation_id
    assert client.get(f"/api/v1/sandboxes/{names['runtime_id']}", headers=user.headers).status_code == 200
    assert send(client, user, "GET", f"{one}/vscode-url").json() == {"vscode_url": None}
    assert send(client, user, "GET", f"{one}/web-hosts").json() == {"hosts": {}}
    assert send(client, user, "DELETE", one).json() is True
    assert (listed(client, user), send(client, user, "GET", one).json()) == ([], None)
    assert (listed(client, other_user), send(client, other_user, "GET", one).json()) == ([], None)


@pytest.mark.usefixtures("model_key", "spec", "node")
def test_wait_for_a_start_returns_its_outcome(client: TestClient, user: ApiUser) -> None:
    response = send(client, user, "POST", "?wait=0.01", {})
    assert (response.json()["conversation_status"], response.headers["Operation-Settled"]) == ("STARTING", "false")


def test_wait_for_a_failed_start_returns_its_outcome(client: TestClient, user: ApiUser) -> None:
    response = send(client, user, "POST", "?wait=20", {})
    assert (response.status_code, response.headers["Operation-Settled"]) == (400, "true")


def test_message_to_a_starting_conversation_is_queued(client: TestClient, user: ApiUser, task: StartTask) -> None:
    assert send(client, user, "POST", f"/{task.conversation_id}/message", {"message": "go on"}).status_code == 200
    waiting = client.get(f"/api/v1/conversations/{task.conversation_id}/pending-messages", headers=user.headers)
    assert [one["content"][0]["text"] for one in waiting.json()] == ["go on"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "stop"),
        ("GET", "git/changes"),
        ("GET", "git/diff?path=a"),
        ("GET", "select-file?file=a"),
    ],
)
def test_operation_unavailable_during_the_start_is_a_409(
    client: TestClient, user: ApiUser, other_user: ApiUser, task: StartTask, method: str, path: str
) -> None:
    response = send(client, user, method, f"/{task.conversation_id}/{path}")
    assert (response.status_code, "being started" in response.json()["error"]) == (409, True)
    assert send(client, other_user, method, f"/{task.conversation_id}/{path}").status_code == 404
    assert send(client, user, method, f"/nonsense/{path}").status_code == 400


COMMANDS = [
    ("PATCH", "", {"title": "x"}),
    ("POST", "/start", None),
    ("POST", "/stop", None),
    ("POST", "/message", {"message": "x"}),
    ("GET", "/config", None),
    ("GET", "/vscode-url", None),
]


@pytest.mark.parametrize(("method", "path", "body"), COMMANDS)
def test_command_to_a_conversation_whose_start_failed_is_a_409(
    client: TestClient, database: Database, user: ApiUser, other_user: ApiUser, method: str, path: str, body: Any
) -> None:
    task = make_start_task(database, user, stage=Stage.ERROR, reason=Reason.CLONE_FAILED, detail="no such repository")
    response = send(client, user, method, f"/{task.conversation_id}{path}", body)
    assert (response.status_code, "no such repository" in response.json()["error"]) == (409, True)
    assert send(client, other_user, method, f"/{task.conversation_id}{path}", body).status_code == 404
    assert listed(client, user) == []


def test_title_of_a_starting_conversation_is_stored_with_its_request(
    client: TestClient, database: Database, user: ApiUser, other_user: ApiUser, task: StartTask
) -> None:
    assert send(client, other_user, "PATCH", f"/{task.conversation_id}", {"title": "Theirs"}).status_code == 404
    assert as_stored(database, task).request == {"title": "First"}
    assert send(client, user, "PATCH", f"/{task.conversation_id}", {"title": "New"}).json() is True
    assert as_stored(database, task).request["title"] == "New"


def test_list_merges_starting_and_started_conversations_across_pages(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    place = make_sandbox(database, user)
    times = [FIRST + timedelta(seconds=number) for number in (0, 0, 0, 1, 2, 3, 4)]
    rows = [
        make_conversation(database, user, place, created_at=time).id
        if number % 2
        else make_start_task(database, user, place, created_at=time).conversation_id
        for number, time in enumerate(times)
    ]
    expected = [*reversed(rows[3:]), *sorted(rows[:3], reverse=True)]
    assert listed(client, user) == expected
    for limit in (1, 2, 3, 7):
        found, page_id = list[str](), ""
        while page_id is not None:
            page = send(
                client, user, "GET", f"?limit={limit}&page_id={page_id}" if page_id else f"?limit={limit}"
            ).json()
            found += [one["conversation_id"] for one in page["results"]]
            page_id = page["next_page_id"]
        assert found == expected, limit


def test_conversation_that_becomes_ready_between_two_pages_keeps_its_place(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    place = make_sandbox(database, user)
    older, newer = (
        make_start_task(
            database, user, place, stage=Stage.STARTING_CONVERSATION, created_at=FIRST + timedelta(seconds=number)
        )
        for number in range(2)
    )
    page = send(client, user, "GET", "?limit=1").json()
    assert [one["conversation_id"] for one in page["results"]] == [newer.conversation_id]
    make_conversation(database, user, place, id=older.conversation_id, listed=False)
    with database.transaction() as session:
        session.get_one(StartTask, older.id).stage = Stage.READY
        conversation_queries.publish(session, older.conversation_id)
    assert listed(client, user, f"?limit=1&page_id={page['next_page_id']}") == [older.conversation_id]
    assert listed(client, user) == [newer.conversation_id, older.conversation_id]


def test_starting_conversations_are_filtered_like_started_ones(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    place = make_sandbox(database, user)
    parent, child = (
        make_start_task(database, user, place, request=request, created_at=FIRST).conversation_id
        for request in (
            {"selected_repository": "acme/app", "trigger": "gui"},
            {"parent_conversation_id": "0" * 32, "trigger": "slack"},
        )
    )
    make_start_task(database, user, place, stage=Stage.READY)
    assert listed(client, user) == [parent]
    assert set(listed(client, user, "?include_sub_conversations=true")) == {parent, child}
    assert listed(client, user, "?selected_repository=acme/app") == [parent]
    assert listed(client, user, "?conversation_trigger=slack") == []
    assert listed(client, user, "?conversation_trigger=slack&include_sub_conversations=true") == [child]
