"""Conversations: batch get, search, count, and the fields of each."""

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.clock import now
from shared.db.database import Database
from shared.ids import new_id
from shared.models import Sandbox
from shared.states import Desired, Status
from tests.api.responses import get_json
from tests.factories import (
    ApiUser,
    make_conversation,
    make_event,
    make_sandbox,
    session_key_of,
)

PATH = "/api/v1/app-conversations"
_get = partial(get_json, PATH)


FIRST = datetime(2026, 1, 1, tzinfo=UTC)


class TestSearch:
    def test_conversations_are_listed_newest_first_and_in_six_orders(
        self, client: TestClient, user: ApiUser, database: Database, sandbox: Sandbox
    ) -> None:
        rows = [
            make_conversation(
                database,
                user,
                sandbox,
                title=title,
                created_at=FIRST + timedelta(days=created),
                updated_at=FIRST + timedelta(days=updated),
            ).id
            for title, created, updated in (("b", 1, 6), ("c", 2, 5), ("a", 3, 4))
        ]
        b, c, a = rows
        expected = {
            None: [a, c, b],
            "CREATED_AT": [b, c, a],
            "CREATED_AT_DESC": [a, c, b],
            "UPDATED_AT": [a, c, b],
            "UPDATED_AT_DESC": [b, c, a],
            "TITLE": [a, b, c],
            "TITLE_DESC": [c, b, a],
        }
        for sort_order, ids in expected.items():
            params = {"sort_order": sort_order} if sort_order else {}
            found, page_id = [], None
            for _ in ids:  # one item per page: the pages fit together
                page = _get(client, user, "/search", limit=1, **params, **({"page_id": page_id} if page_id else {}))
                found += [item["id"] for item in page["items"]]
                page_id = page["next_page_id"]
            assert found == ids
            assert page_id is None

    def test_equal_times_are_paged_without_loss(
        self, client: TestClient, user: ApiUser, database: Database, sandbox: Sandbox
    ) -> None:
        ids = {make_conversation(database, user, sandbox, created_at=FIRST).id for _ in range(5)}
        found, page_id = [], ""
        while page_id is not None:
            page = _get(client, user, "/search", limit=2, **({"page_id": page_id} if page_id else {}))
            found += [item["id"] for item in page["items"]]
            page_id = page["next_page_id"]
        assert len(found) == 5
        assert set(found) == ids

    def test_long_title_fits_into_a_page_id(
        self, client: TestClient, user: ApiUser, database: Database, sandbox: Sandbox
    ) -> None:
        for number in range(2):
            make_conversation(database, user, sandbox, title=f"{number}" + "🦊" * 499)
        page = _get(client, user, "/search", limit=1, sort_order="TITLE")
        rest = _get(client, user, "/search", limit=1, sort_order="TITLE", page_id=page["next_page_id"])
        assert rest["items"][0]["title"].startswith("1")

    def test_filters_agree_with_count(
        self, client: TestClient, user: ApiUser, database: Database, sandbox: Sandbox
    ) -> None:
        other_sandbox = make_sandbox(database, user)
        kept = make_conversation(database, user, sandbox, title="Über 100% of_it", created_at=FIRST, updated_at=FIRST)
        later = FIRST + timedelta(days=1)
        make_conversation(database, user, other_sandbox, title="else", created_at=later, updated_at=later)
        middle = (FIRST + timedelta(hours=12)).isoformat()
        for params in (
            {"title__contains": "0% OF_"},
            {"title__contains": "Über"},
            {"created_at__lt": middle},
            {"updated_at__lt": middle},
            {"created_at__gte": FIRST.isoformat(), "created_at__lt": later.isoformat()},
            {"updated_at__gte": "2026-01-01T00:00:00", "updated_at__lt": "2026-01-02T00:00:00"},
            {"created_at__gte": "2026-01-01T02:00:00+02:00", "created_at__lt": "2026-01-01T13:00:00+01:00"},
            {"sandbox_id__eq": sandbox.id},
        ):
            assert [item["id"] for item in _get(client, user, "/search", **params)["items"]] == [kept.id], params
            assert _get(client, user, "/count", **params) == 1
            assert _get(client, user, **params) == _get(client, user, "/search", **params)
        for text in ("100_", "%else%", "/"):
            assert _get(client, user, "/count", title__contains=text) == 0
        assert _get(client, user, "/count") == 2

    @pytest.mark.parametrize("title", ["Über Straße", "ПРИВЕТ", "a*b", "a?b", "[x]", "a]b^-c", "100% of_it", "a/b\\c"])
    def test_parts_of_titles_are_found_in_any_case(
        self, client: TestClient, user: ApiUser, database: Database, sandbox: Sandbox, title: str
    ) -> None:
        make_conversation(database, user, sandbox, title=f"x{title}x")
        make_conversation(database, user, sandbox, title="xyz ı abc 100 of it")
        for part in (title, title.lower(), title[1:]):
            assert _get(client, user, "/count", title__contains=part) == 1, part
        for part in ("\N{COMBINING DIAERESIS}", "a.b", "[a-z]", "[^q]", "x*x", "x?", "%b", "100__of"):
            assert _get(client, user, "/count", title__contains=part) == 0, part

    @pytest.mark.parametrize("column", ["created_at", "updated_at"])
    @pytest.mark.parametrize("written", ["2026-01-01T10:00:00.123456Z", "2026-01-01T11:00:00.123456+01:00"])
    def test_gte_includes_the_time_itself_and_lt_does_not(
        self, client: TestClient, user: ApiUser, database: Database, sandbox: Sandbox, column: str, written: str
    ) -> None:
        time = datetime(2026, 1, 1, 10, microsecond=123456, tzinfo=UTC)
        before, row, after = (
            make_conversation(database, user, sandbox, **{column: time + timedelta(microseconds=number)}).id
            for number in (-1, 0, 1)
        )
        for comparison, expected in (("gte", {row, after}), ("lt", {before})):
            params = {f"{column}__{comparison}": written}
            assert {item["id"] for item in _get(client, user, "/search", **params)["items"]} == expected
            assert _get(client, user, "/count", **params) == len(expected)

    def test_search_includes_sub_conversations_on_request(
        self, client: TestClient, user: ApiUser, database: Database, sandbox: Sandbox
    ) -> None:
        parent = make_conversation(database, user, sandbox, created_at=FIRST)
        children = [
            make_conversation(database, user, sandbox, parent_id=parent.id, created_at=FIRST + timedelta(hours=hour)).id
            for hour in (1, 2)
        ]
        [shown] = _get(client, user, "/search")["items"]
        assert shown["sub_conversation_ids"] == children
        assert _get(client, user, "/count") == 1
        assert _get(client, user, "/count", include_sub_conversations="true") == 3
        found = _get(client, user, "/search", include_sub_conversations="true")["items"]
        assert [item["parent_conversation_id"] for item in found] == [parent.id, parent.id, None]
        assert _get(client, user, ids=parent.id)[0]["sub_conversation_ids"] == children

    def test_search_finds_only_the_caller_s_listed_conversations(
        self, client: TestClient, user: ApiUser, other_user: ApiUser, database: Database, sandbox: Sandbox
    ) -> None:
        hidden = make_conversation(database, user, sandbox, listed=False)
        theirs = make_conversation(database, other_user, make_sandbox(database, other_user))
        for method in ("/search", ""):
            assert _get(client, user, method) == {"items": [], "next_page_id": None}
        assert _get(client, user, ids=[hidden.id, theirs.id]) == [None, None]
        for conversation_id in (hidden.id, theirs.id):
            assert client.get(f"{PATH}/{conversation_id}", headers=user.headers).status_code == 404


class TestBatch:
    def test_batch_keeps_its_order(
        self, client: TestClient, user: ApiUser, database: Database, sandbox: Sandbox
    ) -> None:
        rows = [make_conversation(database, user, sandbox).id for _ in range(3)]
        dashed = f"{rows[0][:8]}-{rows[0][8:12]}-{rows[0][12:16]}-{rows[0][16:20]}-{rows[0][20:]}"
        found = _get(client, user, ids=[rows[2], new_id(), dashed, rows[1]])
        assert [item and item["id"] for item in found] == [rows[2], None, rows[0], rows[1]]

    def test_batch_of_too_many_or_wrong_ids_is_refused(self, client: TestClient, user: ApiUser) -> None:
        response = client.get(PATH, params={"ids": [new_id(), "bad-1", "bad-2"]}, headers=user.headers)
        assert response.status_code == 400
        assert "bad-1" in response.json()["detail"]
        assert "bad-2" in response.json()["detail"]
        most = [new_id() for _ in range(100)]
        assert _get(client, user, ids=most) == [None] * 100
        response = client.get(PATH, params={"ids": [*most, new_id()]}, headers=user.headers)
        assert response.status_code == 400


class TestFields:
    def test_conversation_in_a_running_sandbox_shows_all_fields(
        self, client: TestClient, user: ApiUser, database: Database, sandbox: Sandbox
    ) -> None:
        metrics = {
            "model_name": "m",
            "accumulated_cost": 0.5,
            "max_budget_per_task": None,
            "accumulated_token_usage": {"prompt_tokens": 3, "reasoning_tokens": 2},
        }
        profile = new_id()
        tags = {"acpserver": "claude", "agentprofileid": profile, "agentprofilerevision": "3", "x": "y"}
        conversation = make_conversation(
            database,
            user,
            sandbox,
            execution_status="running",
            metrics=metrics,
            max_budget=2.0,
            tags=tags,
            agent_kind="acp",
            public=True,
            pr_number=[1],
            working_dir="/workspace/project",
            created_at=FIRST,
        )
        shown = _get(client, user, f"/{conversation.id}")
        assert shown == _get(client, user, ids=conversation.id)[0]
        assert shown == _get(client, user, "/search")["items"][0]
        assert (
            shown["conversation_url"] == f"http://testserver/sandbox/{sandbox.id}/api/conversations/{conversation.id}"
        )
        assert shown["session_api_key"] == session_key_of(sandbox)
        assert (shown["sandbox_status"], shown["execution_status"]) == ("RUNNING", "running")
        assert shown["created_at"] == "2026-01-01T00:00:00.000000Z"
        assert shown["created_by_user_id"] == user.id
        assert shown["metrics"]["max_budget_per_task"] == 2.0
        assert shown["metrics"]["accumulated_token_usage"]["reasoning_tokens"] == 2
        assert shown["acp_server"] == "claude"
        assert shown["launched_agent_profile"]["revision"] == 3
        assert shown["launched_agent_profile"]["agent_profile_id"].replace("-", "") == profile
        assert (shown["tags"], shown["public"], shown["pr_number"]) == (tags, True, [1])
        assert shown["workspace"] == {"kind": "LocalWorkspace", "working_dir": "/workspace/project"}

    def test_agent_that_is_not_an_acp_agent_has_no_acp_server(
        self, client: TestClient, database: Database, user: ApiUser, sandbox: Sandbox
    ) -> None:
        tags = {"acpserver": "claude"}
        conversation = make_conversation(database, user, sandbox, tags=tags, agent_kind="openhands")
        shown = _get(client, user, f"/{conversation.id}")
        assert (shown["tags"], shown["acp_server"]) == (tags, None)

    @pytest.mark.parametrize(
        ("status", "wire"),
        [
            (Status.STARTING, "STARTING"),
            (Status.PAUSED, "PAUSED"),
            (Status.ERROR, "ERROR"),
            (Status.DELETING, "MISSING"),
            (Status.DELETED, "MISSING"),
        ],
    )
    def test_conversation_without_a_running_sandbox_hides_its_urls(
        self, client: TestClient, user: ApiUser, database: Database, status: Status, wire: str
    ) -> None:
        gone = make_sandbox(database, user, status=status, exposed_urls=[{"name": "AGENT_SERVER", "url": "http://a"}])
        conversation = make_conversation(
            database, user, gone, execution_status="running", tags={"agentprofileid": "junk"}
        )
        make_event(database, conversation)
        shown = _get(client, user, f"/{conversation.id}")
        assert shown["sandbox_status"] == wire
        for name in ("execution_status", "conversation_url", "session_api_key", "launched_agent_profile"):
            assert shown[name] is None

    def test_sandbox_status_is_missing_once_a_deletion_is_requested(
        self, client: TestClient, user: ApiUser, database: Database
    ) -> None:
        leaving = make_sandbox(database, user, desired=Desired.DELETED)
        make_conversation(database, user, leaving)
        assert _get(client, user, "/search")["items"][0]["sandbox_status"] == "MISSING"


def test_list_takes_few_queries(
    client: TestClient, user: ApiUser, database: Database, sandbox: Sandbox, count_queries: Any
) -> None:
    for _ in range(20):
        make_conversation(database, user, sandbox, updated_at=now())
    _get(client, user, "/search")  # the key's last use is written once a minute
    with count_queries() as few:
        _get(client, user, "/search", limit=1)
    with count_queries() as many:
        assert len(_get(client, user, "/search", limit=50)["items"]) == 20
    assert len(many) == len(few) == 2
