"""Conversations: starts, lists, and reports of agent servers."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError

from shared.clock import now
from shared.db.database import Database
from shared.ids import new_id
from shared.models import Conversation, Sandbox, StartTask
from shared.users import settings_store
from tests.api.agent_reports import FIRST, conversation_report, event_report, stats_report, update_report, usage_report
from tests.doubles import RecordingPublisher
from tests.factories import (
    VAULT,
    ApiUser,
    make_conversation,
    make_event,
    make_sandbox,
    make_start_task,
    session_key_of,
)
from tests.rows import as_stored

CONVERSATIONS = "/api/v1/app-conversations"
Report = Callable[..., int]


@pytest.fixture
def start(client: TestClient, database: Database, user: ApiUser) -> Callable[..., Any]:
    """Return a function that starts a conversation and returns the response."""
    with database.transaction() as session:
        settings_store.change(session, VAULT, user.id, {"llm_model": "m", "llm_api_key": "k"})

    def start(**body: Any) -> Any:
        return client.post(CONVERSATIONS, json=body, headers=user.headers)

    return start


def search(client: TestClient, user: ApiUser, **params: Any) -> dict[str, Any]:
    response = client.get(f"{CONVERSATIONS}/search", params=params, headers=user.headers)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


@pytest.mark.usefixtures("spec", "node")
def test_defect_01_start_is_stored_before_the_response(
    start: Callable[..., Any], database: Database, publisher: RecordingPublisher
) -> None:
    publisher.jobs.clear()
    task_id = start().json()["id"]
    with database.reading() as session:
        row = session.get_one(StartTask, task_id)
    assert row.due_at is not None  # the sweep enqueues the task then, even if this process and its messages are lost


@pytest.mark.usefixtures("spec", "node")
def test_defect_17_title_and_publicity_come_from_the_request(start: Callable[..., Any], database: Database) -> None:
    response = start(title="A title", public=True).json()
    assert (response["request"]["title"], response["request"]["public"]) == ("A title", True)
    with database.reading() as session:
        request = session.get_one(StartTask, response["id"]).request
    # `tests/worker/conversations/test_start.py` covers their effect.
    assert (request["title"], request["public"]) == ("A title", True)


def test_defect_18_search_can_be_sorted(
    client: TestClient, database: Database, user: ApiUser, sandbox: Sandbox
) -> None:
    old = make_conversation(database, user, sandbox, created_at=FIRST, updated_at=FIRST + timedelta(days=2))
    new = make_conversation(
        database, user, sandbox, created_at=FIRST + timedelta(days=1), updated_at=FIRST + timedelta(days=1)
    )
    for order, expected in (("UPDATED_AT_DESC", [old, new]), ("CREATED_AT_DESC", [new, old])):
        items = search(client, user, limit=20, sort_order=order)["items"]
        assert [item["id"] for item in items] == [row.id for row in expected]


def test_defect_19_count_and_search_agree_and_children_are_named(
    client: TestClient, database: Database, user: ApiUser, sandbox: Sandbox
) -> None:
    parent = make_conversation(database, user, sandbox)
    child = make_conversation(database, user, sandbox, parent_id=parent.id)
    for params in ({}, {"include_sub_conversations": True}):
        items = search(client, user, **params)["items"]
        count = client.get(f"{CONVERSATIONS}/count", params=params, headers=user.headers).json()
        assert len(items) == count == 1 + len(params)
        [shown] = [item for item in items if item["id"] == parent.id]
        assert shown["sub_conversation_ids"] == [child.id]


def test_defect_20_pages_are_stable_and_wildcards_are_literal(
    client: TestClient, database: Database, user: ApiUser, sandbox: Sandbox
) -> None:
    made = {make_conversation(database, user, sandbox, created_at=FIRST).id for _ in range(4)}
    first = search(client, user, limit=2)
    make_conversation(database, user, sandbox, created_at=FIRST + timedelta(days=1))  # would shift an offset
    second = search(client, user, limit=2, page_id=first["next_page_id"])
    assert [item["id"] for item in first["items"] + second["items"]] == sorted(made, reverse=True)
    make_conversation(database, user, sandbox, title="100%_sure")
    assert [item["title"] for item in search(client, user, title__contains="%_")["items"]] == ["100%_sure"]


def test_defect_21_malformed_or_unknown_input_has_its_exact_4xx(
    client: TestClient, user: ApiUser, start: Callable[..., Any], conversation: Conversation
) -> None:
    events = "/api/v1/conversation"
    for path in (
        f"{events}/nonsense/events/search",
        f"{events}/nonsense/events/count",
        f"{events}/nonsense/events?id=x",
        f"{events}/{conversation.id}/events/search?page_id=nonsense",
        f"{CONVERSATIONS}/search?page_id=nonsense",
        f"{CONVERSATIONS}?ids=nonsense",
    ):
        assert client.get(path, headers=user.headers).status_code == 400, path
    for change in ({"selected_repository": "a;b/c"}, {"selected_branch": "a..b"}):
        path = f"{CONVERSATIONS}/{conversation.id}"
        assert client.patch(path, json=change, headers=user.headers).status_code == 422, change
    assert client.patch(f"{CONVERSATIONS}/nonsense", json={}, headers=user.headers).status_code == 400
    for body in (
        {"selected_repository": "a;b/c"},
        {"selected_repository": "a/b", "selected_branch": "a..b"},
        {"initial_message": {"content": [{"text": "x"}]}, "suggested_task": {}},
    ):
        assert start(**body).status_code == 422, body
    assert start(parent_conversation_id=new_id()).status_code == 404
    assert client.post("/api/v1/sandboxes?sandbox_spec_id=unknown", headers=user.headers).status_code == 404


def test_defect_13_sandbox_reports_on_its_own_conversations_only(
    post: Report, conversation: Conversation, database: Database, user: ApiUser
) -> None:
    key = session_key_of(make_sandbox(database, user))  # another sandbox of the same owner
    assert post(f"/events/{conversation.id}", [event_report()], key) == 404
    assert post("/conversations", conversation_report(conversation.id, title="taken over"), key) == 404
    assert as_stored(database, conversation).title == conversation.title


def test_defect_14_report_keeps_fields_that_it_does_not_have(
    post: Report, database: Database, user: ApiUser, sandbox: Sandbox
) -> None:
    conversation = make_conversation(database, user, sandbox, public=True, created_at=FIRST, updated_at=FIRST)
    for status in ("running", "paused", "running"):
        assert post("/conversations", conversation_report(conversation.id, execution_status=status)) == 200
    row = as_stored(database, conversation)
    assert (row.created_at, row.public) == (FIRST, True)


def test_defect_15_events_that_were_not_stored_return_503(
    post: Report, conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OperationalError("INSERT", {}, Exception("the disk is full"))

    monkeypatch.setattr("shared.conversations.events.store", fail)
    assert post(f"/events/{conversation.id}", [event_report()]) == 503  # so that the agent server retries


def test_defect_16_all_tokens_are_counted(
    client: TestClient, post: Report, user: ApiUser, conversation: Conversation
) -> None:
    stats = stats_report(agent=usage_report(0.5, 10, reasoning=3))
    assert post("/conversations", conversation_report(conversation.id, stats=stats)) == 200
    [shown] = client.get(CONVERSATIONS, params={"ids": conversation.id}, headers=user.headers).json()
    usage = shown["metrics"]["accumulated_token_usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["reasoning_tokens"]) == (10, 1, 3)


def test_defect_43_both_webhooks_count_the_same_cost(
    client: TestClient, post: Report, user: ApiUser, conversation: Conversation
) -> None:
    stats = stats_report(agent=usage_report(0.5, 10), condenser=usage_report(0.25, 5))
    reports: list[tuple[str, Any]] = [
        ("/conversations", conversation_report(conversation.id, 1, stats=stats)),
        (f"/events/{conversation.id}", [update_report("stats", stats, 2)]),
    ]
    for path, report in reports:
        assert post(path, report) == 200
        [shown] = client.get(CONVERSATIONS, params={"ids": conversation.id}, headers=user.headers).json()
        assert shown["metrics"]["accumulated_cost"] == 0.75


def test_defect_40_times_are_compared_as_times(
    client: TestClient, database: Database, user: ApiUser, conversation: Conversation
) -> None:
    for hour in (10, 11, 12):
        make_event(database, conversation, id=f"at-{hour}", timestamp=FIRST + timedelta(hours=hour))
    for since in ("2026-01-01T11:00:00", "2026-01-01T11:00:00Z", "2026-01-01T13:00:00+02:00"):
        found = client.get(
            f"/api/v1/conversation/{conversation.id}/events/search",
            params={"timestamp__gte": since},
            headers=user.headers,
        ).json()
        assert [event["id"] for event in found["items"]] == ["at-11", "at-12"], since


@pytest.mark.usefixtures("spec", "node")
def test_defect_52_repeated_request_with_an_id_is_one_conversation(start: Callable[..., Any]) -> None:
    chosen = new_id()
    first, second = (start(conversation_id=chosen) for _ in range(2))
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.json()["id"] == second.json()["id"]


@pytest.mark.parametrize(
    ("strategy", "joined"),
    [
        ("NO_GROUPING", None),
        ("ADD_TO_ANY", "oldest"),
        ("GROUP_BY_NEWEST", "newest"),
        ("LEAST_RECENTLY_USED", "idle"),
        ("FEWEST_CONVERSATIONS", "quiet"),
    ],
)
def test_defect_45_conversation_joins_the_sandbox_of_the_owners_strategy(
    start: Callable[..., Any], client: TestClient, database: Database, user: ApiUser, strategy: str, joined: str | None
) -> None:
    made: dict[str, Sandbox] = {}
    for days, (name, count) in enumerate((("oldest", 2), ("idle", 2), ("quiet", 1), ("newest", 2))):
        used = now() - timedelta(hours=2 if name == "idle" else 1)
        made[name] = make_sandbox(database, user, created_at=FIRST + timedelta(days=days), last_active_at=used)
        for _ in range(count - 1):
            make_conversation(database, user, made[name])
        make_start_task(database, user, made[name])  # an unfinished start counts as a conversation
    client.post("/api/v1/settings", json={"sandbox_grouping_strategy": strategy}, headers=user.headers)
    with database.reading() as session:
        task = session.get_one(StartTask, start().json()["id"])
    names = {sandbox.id: name for name, sandbox in made.items()}
    assert (names.get(str(task.sandbox_id)), task.made_sandbox) == (joined, joined is None)
