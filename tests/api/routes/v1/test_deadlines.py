"""Deadlines over HTTP: shown, chosen at the start, changed later, postponed by activity."""

from datetime import datetime, timedelta
from functools import partial
from itertools import product
from typing import Any

import pytest
import time_machine
from fastapi.testclient import TestClient

from shared.clock import after, now
from shared.db.database import Database
from shared.models import Conversation, Sandbox
from shared.sandboxes import deadlines, due_deadlines
from shared.sandboxes import status as sandbox_status
from shared.sandboxes.deadlines import FIELDS
from shared.sandboxes.status import ObservedState
from shared.states import MAX_DEADLINE_SECONDS, Desired, Status
from shared.users import settings_store
from tests.api.agent_reports import conversation_report, event_report
from tests.api.responses import get_json
from tests.api.routes.v1.test_webhooks import Post
from tests.factories import VAULT, ApiUser, make_conversation, make_sandbox, make_spec
from tests.rows import as_stored

PATH = "/api/v1/sandboxes"
_get = partial(get_json, PATH)
CHAIN: dict[str, Any] = {"freeze_after_seconds": 60, "stop_after_seconds": 600, "delete_after_seconds": 6000}
NONE: dict[str, Any] = dict.fromkeys(FIELDS)


@pytest.fixture
def sandbox_with_deadlines(database: Database, user: ApiUser) -> Sandbox:
    """A running sandbox of a spec with deadlines, last used half a minute ago."""
    make_spec(database, **CHAIN)
    sandbox = make_sandbox(database, user, status_changed_at=after(-30), last_active_at=after(-30))
    with database.transaction() as session:
        deadlines.refresh(session, sandbox.id)
    return as_stored(database, sandbox)


def time_of(shown: str) -> datetime:
    return datetime.fromisoformat(shown)


def in_force(shown: dict[str, Any]) -> dict[str, Any]:
    return {name: shown[name] for name in FIELDS}


def patch(client: TestClient, user: ApiUser, sandbox: Sandbox, body: Any) -> Any:
    return client.patch(f"{PATH}/{sandbox.id}", json=body, headers=user.headers)


class TestFields:
    def test_deadlines_are_in_every_get(
        self, client: TestClient, user: ApiUser, sandbox_with_deadlines: Sandbox
    ) -> None:
        shown = _get(client, user, f"/{sandbox_with_deadlines.id}")
        assert in_force(shown) == NONE | CHAIN
        assert (time_of(shown["last_active_at"]), shown["expires_at"]) == (sandbox_with_deadlines.last_active_at, None)
        assert shown["next_deadline"]["does"] == "freeze"
        assert time_of(shown["next_deadline"]["at"]) == sandbox_with_deadlines.last_active_at + timedelta(seconds=60)
        assert _get(client, user, "/search")["items"] == _get(client, user, id=sandbox_with_deadlines.id) == [shown]

    def test_deadlines_are_null_without_any(self, client: TestClient, user: ApiUser, database: Database) -> None:
        shown = _get(client, user, f"/{make_sandbox(database, user).id}")
        assert in_force(shown) == NONE
        assert (shown["expires_at"], shown["next_deadline"]) == (None, None)

    def test_each_sandbox_has_the_deadlines_of_its_spec(
        self, client: TestClient, user: ApiUser, sandbox_with_deadlines: Sandbox, database: Database
    ) -> None:
        other = make_sandbox(database, user, spec_id="other:1")
        shown = {item["id"]: in_force(item) for item in _get(client, user, "/search")["items"]}
        assert shown == {sandbox_with_deadlines.id: NONE | CHAIN, other.id: NONE}

    def test_deadlines_of_a_spec_are_shown(
        self, client: TestClient, user: ApiUser, sandbox_with_deadlines: Sandbox
    ) -> None:
        [spec] = get_json("/api/v1/sandbox-specs", client, user, id=sandbox_with_deadlines.spec_id)
        assert in_force(spec) == NONE | CHAIN

    def test_reason_of_the_deletion_is_shown(
        self, client: TestClient, user: ApiUser, database: Database, other_user: ApiUser
    ) -> None:
        sandbox = make_sandbox(database, user, max_age_seconds=1, created_at=after(-2))
        with database.transaction() as session:
            deadlines.refresh(session, sandbox.id)
        with database.transaction() as session:
            [seen] = due_deadlines.overdue(session, "node-b")
            assert due_deadlines.apply_deadline(session, seen, due_at=now())
        with database.transaction() as session:
            sandbox_status.set_status(session, sandbox, ObservedState(Status.DELETING, seen.action.outcome[1]))
        assert client.post(f"{PATH}/{sandbox.id}/resume", headers=user.headers).status_code == 404
        assert patch(client, user, sandbox, {"max_age_seconds": "never"}).status_code == 404
        [move] = _get(client, user, f"/{sandbox.id}/transitions")
        assert (move["to_status"], move["reason"]) == ("DELETING", "expired")
        url = f"{PATH}/{sandbox.id}/transitions"
        assert client.get(url, headers=other_user.headers).status_code == 404


@pytest.mark.usefixtures("node")
class TestStart:
    @pytest.mark.parametrize("content", [None, b"", b"{}", b"null", b'{"unknown": 1}'])
    def test_start_without_a_body_has_its_spec_s_deadlines(
        self, client: TestClient, user: ApiUser, database: Database, content: bytes | None
    ) -> None:
        make_spec(database, **CHAIN)
        headers = user.headers | {"Content-Type": "application/json"}
        response = client.post(PATH, content=content, headers=headers)
        assert (response.status_code, in_force(response.json())) == (200, NONE | CHAIN)
        assert response.json()["next_deadline"] is None  # the sandbox is not idle yet

    def test_start_with_own_deadlines_shows_them(self, client: TestClient, user: ApiUser, database: Database) -> None:
        make_spec(database, **CHAIN)
        own = {"freeze_after_seconds": "never", "stop_after_seconds": 7, "delete_after_seconds": None}
        shown = client.post(PATH, json=own | {"max_age_seconds": 90}, headers=user.headers).json()
        expected = {"freeze_after_seconds": None, "stop_after_seconds": 7, "max_age_seconds": 90}
        assert in_force(shown) == CHAIN | expected
        assert time_of(shown["expires_at"]) == time_of(shown["created_at"]) + timedelta(seconds=90)
        assert shown["next_deadline"] == {"at": shown["expires_at"], "does": "expire"}
        assert _get(client, user, f"/{shown['id']}")["expires_at"] == shown["expires_at"]


class TestPatch:
    def test_patch_changes_only_the_sent_deadlines(
        self, client: TestClient, user: ApiUser, sandbox_with_deadlines: Sandbox
    ) -> None:
        shown = patch(
            client, user, sandbox_with_deadlines, {"freeze_after_seconds": 5, "stop_after_seconds": "never"}
        ).json()
        assert in_force(shown) == NONE | CHAIN | {"freeze_after_seconds": 5, "stop_after_seconds": None}
        shown = patch(client, user, sandbox_with_deadlines, {"freeze_after_seconds": None}).json()
        assert in_force(shown) == NONE | CHAIN | {"stop_after_seconds": None}
        assert _get(client, user, f"/{sandbox_with_deadlines.id}") == shown

    def test_empty_patch_counts_as_activity(
        self, client: TestClient, user: ApiUser, sandbox_with_deadlines: Sandbox, database: Database
    ) -> None:
        shown = patch(client, user, sandbox_with_deadlines, {}).json()
        assert time_of(shown["last_active_at"]) > sandbox_with_deadlines.last_active_at + timedelta(seconds=29)
        assert time_of(shown["next_deadline"]["at"]) == time_of(shown["last_active_at"]) + timedelta(seconds=60)
        assert as_stored(database, sandbox_with_deadlines).generation == sandbox_with_deadlines.generation  # unchanged

    def test_invalid_deadline_is_a_422_with_its_location(
        self, client: TestClient, user: ApiUser, sandbox_with_deadlines: Sandbox, database: Database
    ) -> None:
        values: list[Any] = [0, -1, 1.5, True, "7", "Never", "", [], {}, MAX_DEADLINE_SECONDS + 1, 10**30]
        operations = (("PATCH", f"{PATH}/{sandbox_with_deadlines.id}"), ("POST", PATH))
        for (method, url), name, value in product(operations, FIELDS, values):
            response = client.request(method, url, json={name: value}, headers=user.headers)
            assert response.status_code == 422, (method, name, value)
            [entry] = response.json()["detail"]
            assert entry["loc"] == ["body", name]
            assert '"never"' in entry["msg"]
        assert as_stored(database, sandbox_with_deadlines) == sandbox_with_deadlines

    def test_max_age_that_is_already_exceeded_is_refused(
        self, client: TestClient, user: ApiUser, database: Database
    ) -> None:
        sandbox = make_sandbox(database, user, created_at=after(-3600))
        response = patch(client, user, sandbox, {"max_age_seconds": 3599})
        assert (response.status_code, response.json()["detail"][0]["loc"]) == (422, ["body", "max_age_seconds"])
        assert as_stored(database, sandbox).max_age_seconds is None
        assert patch(client, user, sandbox, {"max_age_seconds": 3700}).status_code == 200

    def test_patch_of_an_unknown_sandbox_is_a_404(
        self,
        client: TestClient,
        user: ApiUser,
        other_user: ApiUser,
        sandbox_with_deadlines: Sandbox,
        database: Database,
    ) -> None:
        assert patch(client, other_user, sandbox_with_deadlines, {}).status_code == 404
        leaving = make_sandbox(database, user, desired=Desired.DELETED)
        assert patch(client, user, leaving, {}).status_code == 404


class TestActivity:
    def test_report_of_the_agent_server_counts_as_activity(
        self, client: TestClient, post: Post, user: ApiUser, conversation: Conversation, database: Database
    ) -> None:
        reports = (
            (f"/events/{conversation.id}", [event_report()]),
            ("/conversations", conversation_report(conversation.id)),
        )
        with time_machine.travel(after(60), tick=False) as clock:
            for path, body in reports:
                clock.shift(11)
                assert post(path, body) == 200
                used = self.last_use(client, user, conversation)
                assert used == now()
                clock.shift(9)
                assert post(path, body) == 200
                assert self.last_use(client, user, conversation) == used  # too soon after the last write

    def test_refused_report_is_no_activity(
        self, client: TestClient, post: Post, user: ApiUser, conversation: Conversation, database: Database
    ) -> None:
        before = self.last_use(client, user, conversation)
        others = make_conversation(database, user, make_sandbox(database, user))
        with time_machine.travel(after(60), tick=False):
            assert post(f"/events/{others.id}", [event_report()]) == 404
        assert self.last_use(client, user, conversation) == before

    @pytest.mark.parametrize("status", [Status.RUNNING, Status.PAUSED])
    def test_start_of_a_conversation_counts_as_activity(
        self, client: TestClient, user: ApiUser, database: Database, status: Status
    ) -> None:
        with database.transaction() as session:
            settings_store.change(session, VAULT, user.id, {"llm_api_key": "sk-test"})
        sandbox = make_sandbox(database, user, status=status)
        with time_machine.travel(after(60), tick=False):
            body = {"sandbox_id": sandbox.id}
            response = client.post("/api/v1/app-conversations", json=body, headers=user.headers)
            assert response.status_code == 200
            assert as_stored(database, sandbox).last_active_at == now()

    def test_resume_is_activity_and_pause_or_read_is_not(
        self, client: TestClient, user: ApiUser, sandbox_with_deadlines: Sandbox, database: Database
    ) -> None:
        _get(client, user, f"/{sandbox_with_deadlines.id}")
        client.post(f"{PATH}/{sandbox_with_deadlines.id}/pause", headers=user.headers)
        assert as_stored(database, sandbox_with_deadlines).last_active_at == sandbox_with_deadlines.last_active_at
        client.post(f"{PATH}/{sandbox_with_deadlines.id}/resume", headers=user.headers)
        assert as_stored(database, sandbox_with_deadlines).last_active_at > sandbox_with_deadlines.last_active_at

    def last_use(self, client: TestClient, user: ApiUser, conversation: Conversation) -> datetime:
        return time_of(_get(client, user, f"/{conversation.sandbox_id}")["last_active_at"])


def test_list_reads_its_specs_with_one_query(
    client: TestClient, user: ApiUser, database: Database, count_queries: Any
) -> None:
    for number in range(3):
        make_sandbox(database, user, spec_id=f"s:{number}")
    with count_queries() as statements:
        assert len(_get(client, user, "/search")["items"]) == 3
    assert sum("sandbox_spec" in statement for statement in statements) == 1
