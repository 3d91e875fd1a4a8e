"""Lists as JSON text: each item equals the response for the row byte for byte, and no list is stale."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError

from api.lists import MAX_QUERY_BYTES
from api.middleware.request_body import BodyLimitMiddleware
from shared.conversations import lists as conversation_lists
from shared.db.database import Database
from shared.models import Conversation, Sandbox
from shared.states import DeadlineAction, Desired, PauseKind, Reason, Status
from tests.factories import ApiUser, make_conversation, make_sandbox, make_spec

CONVERSATIONS, SANDBOXES = "/api/v1/app-conversations", "/api/v1/sandboxes"
TIME = datetime(2026, 2, 3, 4, 5, 6, 70, tzinfo=UTC)
MIDNIGHT = datetime(2026, 2, 3, tzinfo=UTC)
TEXT = 'Ä "q" \\ \n\r\t\x01\x7f \u2028 </script> 🦩 \''
PROFILE = {"agentprofileid": "0b9ac3b1-9a5f-4a3c-bb59-0b3c5e5f6a11", "agentprofilerevision": "3"}
TOKENS = {"prompt_tokens": 12, "unknown": True, "model": TEXT}
METRICS = {"accumulated_token_usage": TOKENS, "accumulated_cost": 0.1 + 0.2, "more": [1]}
CONVERSATION_CHANGES: list[dict[str, Any]] = [
    {"title": TEXT},
    {"title": ""},
    {"title": "a\\u0000b"},
    {"public": True},
    {"public": False},
    {"selected_repository": TEXT, "selected_branch": TEXT, "git_provider": "github", "trigger": "gui"},
    {"pr_number": [1, 2**62]},
    {"llm_model": TEXT, "agent_kind": "other", "working_dir": TEXT},
    {"execution_status": "running"},
    {"metrics": METRICS},
    {"metrics": {"accumulated_cost": 1}, "max_budget": 0.1},
    {"metrics": {}, "max_budget": 123456789.123456789},
    {"max_budget": 1e300, "metrics": {"accumulated_cost": 1e-300}},
    {"tags": PROFILE | {"acpserver": TEXT, TEXT: TEXT}},
    {"tags": PROFILE | {"agentprofileid": "none"}},
    {"created_at": TIME, "updated_at": MIDNIGHT},
]
SANDBOX_CHANGES: list[dict[str, Any]] = [
    {"status": Status.PAUSED, "desired": Desired.PAUSED, "pause_kind": PauseKind.STOPPED, "exposed_urls": None},
    {"status": Status.ERROR, "reason": Reason.EXIT_CODE, "detail": TEXT},
    {"status": Status.STARTING},
    {"exposed_urls": []},
    {"exposed_urls": [{"name": "AGENT_SERVER", "url": "http://[::1]:1/", "port": 8001}]},
    {"exposed_urls": [{"name": TEXT, "url": TEXT, "port": 1}]},
    {"freeze_after_seconds": 5, "stop_after_seconds": 0, "max_age_seconds": 7},
    {"last_active_at": TIME, "expires_at": MIDNIGHT, "deadline_at": TIME, "deadline_does": DeadlineAction.FREEZE},
    {"created_at": TIME, "updated_at": MIDNIGHT},
]


def read(client: TestClient, user: ApiUser, path: str) -> bytes:
    response = client.get(path, headers=user.headers)
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"] == "application/json"
    return bytes(response.content)


def page(*items: bytes) -> bytes:
    return b'{"items":[%b],"next_page_id":null}' % b",".join(items)


def change(database: Database, row: Conversation | Sandbox, columns: dict[str, Any]) -> None:
    with database.transaction() as session:
        stored = session.get_one(type(row), row.id)
        for name, value in columns.items():
            setattr(stored, name, value)


@pytest.mark.parametrize("columns", CONVERSATION_CHANGES, ids="-".join)
def test_changed_conversation_equals_its_list_item(
    client: TestClient, user: ApiUser, database: Database, sandbox: Sandbox, columns: dict[str, Any]
) -> None:
    row = make_conversation(database, user, sandbox)
    before = read(client, user, f"{CONVERSATIONS}/search")
    assert before == page(read(client, user, f"{CONVERSATIONS}/{row.id}"))
    change(database, row, columns)
    after = read(client, user, f"{CONVERSATIONS}/search")
    assert after == page(read(client, user, f"{CONVERSATIONS}/{row.id}"))
    assert after != before


@pytest.mark.parametrize("columns", SANDBOX_CHANGES, ids="-".join)
def test_changed_sandbox_equals_its_list_item(
    client: TestClient, user: ApiUser, database: Database, columns: dict[str, Any]
) -> None:
    make_spec(database, freeze_after_seconds=60, delete_after_seconds=3600)
    row = make_sandbox(database, user)
    conversation = make_conversation(database, user, row, execution_status="idle")
    before = read(client, user, f"{SANDBOXES}/search")
    read(client, user, f"{CONVERSATIONS}/search")
    change(database, row, columns)
    after = read(client, user, f"{SANDBOXES}/search")
    assert after == page(read(client, user, f"{SANDBOXES}/{row.id}"))
    assert after != before
    shown = read(client, user, f"{CONVERSATIONS}/{conversation.id}")
    assert read(client, user, f"{CONVERSATIONS}/search") == page(shown)


@pytest.mark.parametrize("path", [f"{CONVERSATIONS}/search", f"{CONVERSATIONS}/count", f"{SANDBOXES}/search"])
def test_unchanged_list_is_not_queried(
    client: TestClient,
    user: ApiUser,
    database: Database,
    sandbox: Sandbox,
    count_queries: Callable[[], AbstractContextManager[list[str]]],
    path: str,
) -> None:
    first = read(client, user, path)
    with count_queries() as queries:
        assert read(client, user, path) == first
    assert len(queries) == 1  # the key lookup with the version of the lists
    make_conversation(database, user, sandbox)
    with count_queries() as queries:
        read(client, user, path)
    assert len(queries) == 2


@pytest.mark.usefixtures("sandbox")  # a user who never had a sandbox has no list version
def test_unchanged_list_is_served_before_other_middleware(
    client: TestClient, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{SANDBOXES}/search"
    first = read(client, user, path)

    async def fail(*_: Any) -> None:
        raise AssertionError("the request was passed on")

    monkeypatch.setattr(BodyLimitMiddleware, "__call__", fail)
    assert read(client, user, path) == first
    assert client.get(f"{path}?limit=1", headers=user.headers).status_code == 500


@pytest.mark.parametrize("path", [f"{CONVERSATIONS}/search", f"{CONVERSATIONS}/count", f"{SANDBOXES}/search"])
def test_known_query_is_not_parsed_again(
    client: TestClient,
    user: ApiUser,
    other_user: ApiUser,
    database: Database,
    sandbox: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
) -> None:
    make_conversation(database, user, sandbox)
    first = read(client, user, path)

    async def fail(**_: Any) -> None:
        raise AssertionError("the query was parsed again")

    monkeypatch.setattr("fastapi.routing.solve_dependencies", fail)
    assert read(client, other_user, path) != first
    assert client.get(f"{path}?include_sub_conversations=1&limit=7", headers=user.headers).status_code == 500


@pytest.mark.usefixtures("sandbox")
def test_body_is_checked_with_a_known_query(client: TestClient, user: ApiUser) -> None:
    path = f"{SANDBOXES}/search"
    read(client, user, path)
    assert client.request("GET", path, content=b"\0", headers=user.headers).status_code == 422


def test_very_long_query_is_not_cached(
    client: TestClient,
    user: ApiUser,
    count_queries: Callable[[], AbstractContextManager[list[str]]],
) -> None:
    path = f"{SANDBOXES}/search?more={'x' * MAX_QUERY_BYTES}"
    for _ in range(2):
        with count_queries() as queries:
            assert read(client, user, path) == page()
    assert len(queries) == 2


def test_change_between_version_and_page_is_shown(
    client: TestClient, user: ApiUser, database: Database, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = make_conversation(database, user, sandbox)
    search = conversation_lists.search

    def change_before_and_after(*args: Any, **kwargs: Any) -> Any:
        change(database, row, {"title": "before"})
        page = search(*args, **kwargs)
        change(database, row, {"title": "after"})
        return page

    with monkeypatch.context() as patch:
        patch.setattr(conversation_lists, "search", change_before_and_after)
        assert b'"before"' in read(client, user, f"{CONVERSATIONS}/search")
    assert b'"after"' in read(client, user, f"{CONVERSATIONS}/search")


def test_slow_response_does_not_replace_a_newer_one(
    client: TestClient, user: ApiUser, database: Database, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = make_conversation(database, user, sandbox)
    search = conversation_lists.search

    def overtaken(*args: Any, **kwargs: Any) -> Any:
        page = search(*args, **kwargs)
        monkeypatch.setattr(conversation_lists, "search", search)
        change(database, row, {"title": "newer"})
        assert b'"newer"' in read(client, user, f"{CONVERSATIONS}/search")
        return page

    monkeypatch.setattr(conversation_lists, "search", overtaken)
    assert b'"newer"' not in read(client, user, f"{CONVERSATIONS}/search")
    assert b'"newer"' in read(client, user, f"{CONVERSATIONS}/search")


def test_added_and_removed_children_are_shown(client: TestClient, user: ApiUser, database: Database) -> None:
    sandbox = make_sandbox(database, user)
    parent = make_conversation(database, user, sandbox)
    children = [make_conversation(database, user, sandbox, parent_id=parent.id) for _ in range(3)]
    change(database, children[0], {"listed": False})
    found = json.loads(read(client, user, f"{CONVERSATIONS}/search"))["items"]
    assert [item["sub_conversation_ids"] for item in found] == [[children[1].id, children[2].id]]
    shown = read(client, user, f"{CONVERSATIONS}/{parent.id}")
    assert read(client, user, f"{CONVERSATIONS}/search") == page(shown)


def test_same_query_shows_each_user_their_own_rows(
    client: TestClient, user: ApiUser, other_user: ApiUser, database: Database, sandbox: Sandbox
) -> None:
    own = make_conversation(database, user, sandbox)
    for _ in range(2):
        assert json.loads(read(client, user, f"{CONVERSATIONS}/search"))["items"][0]["id"] == own.id
        assert read(client, other_user, f"{CONVERSATIONS}/search") == page()


def test_page_has_the_id_of_the_next_page(
    client: TestClient, user: ApiUser, database: Database, sandbox: Sandbox
) -> None:
    rows = [make_conversation(database, user, sandbox, title=TEXT) for _ in range(3)]
    for order in ("CREATED_AT", "UPDATED_AT_DESC", "TITLE"):
        path, found = f"{CONVERSATIONS}/search?limit=1&sort_order={order}", []
        page_id = ""
        while page_id is not None:
            shown = json.loads(read(client, user, path + page_id))
            found += [item["id"] for item in shown["items"]]
            page_id = shown["next_page_id"] and f"&page_id={shown['next_page_id']}"
        assert sorted(found) == sorted(row.id for row in rows)


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(
    ("method", "options", "status"),
    [
        ("GET", {"headers": {"Authorization": ""}}, 401),
        ("GET", {"headers": {"Authorization": "Bearer aw_unknown"}}, 401),
        ("GET", {"params": {"limit": "0"}}, 422),
        ("POST", {}, 405),
    ],
    ids=["no key", "wrong key", "wrong query", "POST"],
)
def test_invalid_requests_are_rejected_with_a_cached_list(
    client: TestClient, user: ApiUser, method: str, options: dict[str, Any], status: int
) -> None:
    path = f"{SANDBOXES}/search"
    read(client, user, path)
    response = client.request(method, path, **options | {"headers": user.headers | options.get("headers", {})})
    assert response.status_code == status


@pytest.mark.usefixtures("sandbox")
def test_unreachable_store_is_a_503_with_a_cached_list(
    client: TestClient, user: ApiUser, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{SANDBOXES}/search"
    read(client, user, path)

    def fail(*_: Any, **__: Any) -> Any:
        raise OperationalError("", {}, Exception())

    monkeypatch.setattr(database, "fetch", fail)
    assert client.get(path, headers=user.headers).status_code == 503
