"""Start tasks: batch get, search, count, and the fields at each stage."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.schemas.v1.start_tasks import StartTaskInfo
from shared.db.database import Database
from shared.ids import new_id
from shared.states import Reason, Stage
from tests.api.responses import get_json
from tests.factories import ApiUser, make_sandbox, make_start_task

PATH = "/api/v1/app-conversations/start-tasks"
_get = partial(get_json, PATH)
FIRST = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("stage", list(Stage))
def test_fields_appear_with_their_stage(client: TestClient, user: ApiUser, database: Database, stage: Stage) -> None:
    sandbox = make_sandbox(database, user)
    task = make_start_task(
        database, user, sandbox, stage=stage, reason=Reason.SETUP_SCRIPT_FAILED, detail="exit code 3"
    )
    [shown] = _get(client, user, ids=task.id)
    order = list(Stage)
    url = f"http://testserver/sandbox/{sandbox.id}"
    with_server = stage in (Stage.STARTING_CONVERSATION, Stage.READY)
    failed = stage == Stage.ERROR
    assert shown["status"] == stage
    assert shown["sandbox_id"] == (sandbox.id if order.index(stage) > 0 else None)
    assert shown["agent_server_url"] == (url if with_server else None)
    assert shown["app_conversation_id"] == (task.conversation_id if stage == Stage.READY else None)
    assert shown["detail"] == ("exit code 3" if failed else None)
    assert shown["reason"] == ("setup_script_failed" if failed else None)
    assert shown["request"]["agent_type"] == "default"
    assert shown["request"]["pr_number"] == []
    assert len(shown["request"]) == 19


def test_batch_keeps_its_order(client: TestClient, user: ApiUser, other_user: ApiUser, database: Database) -> None:
    mine = [make_start_task(database, user).id for _ in range(2)]
    theirs = make_start_task(database, other_user).id
    found = _get(client, user, ids=[mine[1], new_id(), theirs, mine[0]])
    assert [item and item["id"] for item in found] == [mine[1], None, None, mine[0]]


def test_batch_of_too_many_or_wrong_ids_is_refused(client: TestClient, user: ApiUser) -> None:
    most = [new_id() for _ in range(100)]
    assert _get(client, user, ids=most) == [None] * 100
    for ids, status in (([*most, new_id()], 400), (["nonsense"], 400), ([], 422)):
        response = client.get(PATH, params={"ids": ids}, headers=user.headers)
        assert response.status_code == status
        assert response.json()["detail"]


def test_start_tasks_are_paged_in_five_orders(
    client: TestClient, user: ApiUser, other_user: ApiUser, database: Database
) -> None:
    first, second, third = (
        make_start_task(
            database,
            user,
            created_at=FIRST + timedelta(days=created),
            updated_at=FIRST + timedelta(days=updated),
        ).id
        for created, updated in ((1, 2), (2, 3), (3, 1))
    )
    make_start_task(database, other_user)
    for sort_order, expected in {
        None: [third, second, first],
        "CREATED_AT": [first, second, third],
        "CREATED_AT_DESC": [third, second, first],
        "UPDATED_AT": [third, first, second],
        "UPDATED_AT_DESC": [second, first, third],
    }.items():
        params = {"sort_order": sort_order} if sort_order else {}
        page = _get(client, user, "/search", limit=2, **params)
        rest = _get(client, user, "/search", limit=2, page_id=page["next_page_id"], **params)
        assert [item["id"] for item in page["items"] + rest["items"]] == expected
        assert rest["next_page_id"] is None


def test_filters_agree_with_count(client: TestClient, user: ApiUser, database: Database) -> None:
    ready = make_start_task(database, user, stage=Stage.READY, created_at=FIRST)
    waiting = make_start_task(database, user, created_at=FIRST + timedelta(days=1))
    for params, expected in (
        ({"conversation_id__eq": ready.conversation_id}, [ready.id]),
        ({"conversation_id__eq": waiting.conversation_id}, []),  # the task has no conversation yet
        ({"created_at__gte": "2026-01-01T12:00:00"}, [waiting.id]),
        ({"status__eq": "READY"}, [ready.id]),
        ({"status__eq": "ERROR"}, []),
        ({"status": "ERROR"}, [waiting.id, ready.id]),  # an unknown parameter
        ({}, [waiting.id, ready.id]),
    ):
        assert [item["id"] for item in _get(client, user, "/search", **params)["items"]] == expected
        assert _get(client, user, "/count", **params) == len(expected)


@pytest.fixture
def large(database: Database, user: ApiUser, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tasks whose requests are large; one is larger than a page."""
    monkeypatch.setattr("shared.sql.pagination.MAX_PAGE_BYTES", 8500)
    return [
        make_start_task(
            database,
            user,
            created_at=FIRST + timedelta(days=number),
            request={"system_message_suffix": "x" * kilobytes * 1000},
        ).id
        for number, kilobytes in enumerate((10, 3, 3, 3, 0, 5))
    ]


@pytest.mark.parametrize(("sort_order", "sizes"), [("CREATED_AT", [1, 2, 3]), ("CREATED_AT_DESC", [3, 2, 1])])
def test_pages_have_a_size_limit(
    client: TestClient, user: ApiUser, large: list[str], sort_order: str, sizes: list[int]
) -> None:
    pages: list[list[str]] = []
    page: dict[str, Any] = {}
    while page.get("next_page_id", "") is not None:
        following = {"page_id": page["next_page_id"]} if page else {}
        page = _get(client, user, "/search", sort_order=sort_order, **following)
        pages.append([item["id"] for item in page["items"]])
    assert [len(one) for one in pages] == sizes
    assert list(chain.from_iterable(pages)) == (large if sort_order == "CREATED_AT" else large[::-1])


def test_batch_of_large_tasks_is_refused(client: TestClient, user: ApiUser, large: list[str]) -> None:
    assert len(_get(client, user, ids=large[:1])) == 1
    assert len(_get(client, user, ids=large[1:3])) == 2
    response = client.get(PATH, params={"ids": large[:2]}, headers=user.headers)
    assert response.status_code == 413
    assert "request fewer" in response.json()["detail"]


@pytest.mark.parametrize("path", ["/search", "?ids={id}", "/{id}", "/{id}/cancel"])
def test_tasks_are_written_in_a_thread(
    client: TestClient, user: ApiUser, database: Database, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_start_task(database, user)
    threads: list[bool] = []
    write = StartTaskInfo.model_dump_json

    def record_thread(shown: StartTaskInfo) -> str:
        threads.append(asyncio._get_running_loop() is None)
        return write(shown)

    monkeypatch.setattr(StartTaskInfo, "model_dump_json", record_thread)
    method = "POST" if path.endswith("cancel") else "GET"
    assert client.request(method, PATH + path.format(id=task.id), headers=user.headers).status_code == 200
    assert threads == [True]
