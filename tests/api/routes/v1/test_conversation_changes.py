"""PATCH of a conversation, and its export."""

import io
import json
import zipfile
from datetime import timedelta
from typing import Any
from unittest.mock import Mock
from weakref import ReferenceType, ref

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.pool import QueuePool

from api.request.authentication import Caller
from api.request.context import Context
from api.routes.v1 import conversation_export
from api.schemas.v1.conversations import AppConversation
from shared.clock import now
from shared.conversations import deletion, events
from shared.db.database import Database
from shared.ids import new_id
from shared.models import Conversation, Event, Sandbox
from shared.sql.pagination import Page
from shared.states import Status
from shared.users import api_keys
from tests.api.agent_reports import FIRST, JSON, conversation_report
from tests.factories import ApiUser, make_conversation, make_event, make_sandbox, session_key_of
from tests.rows import as_stored

PATH = "/api/v1/app-conversations"


def patch(client: TestClient, user: ApiUser, conversation: Conversation, body: Any) -> dict[str, Any]:
    response = client.patch(f"{PATH}/{conversation.id}", json=body, headers=user.headers)
    assert response.status_code == 200, response.text
    shown: dict[str, Any] = response.json()
    return shown


class TestChange:
    def test_patch_changes_the_sent_fields_and_keeps_the_rest(
        self, client: TestClient, user: ApiUser, conversation: Conversation
    ) -> None:
        expected = client.get(f"{PATH}/{conversation.id}", headers=user.headers).json()
        for change in (
            {"title": "A new title"},
            {"public": True},
            {"selected_repository": "a/b", "selected_branch": "main", "git_provider": "gitlab"},
            {"selected_branch": None},
            {"public": None},
            {"whatever": 1},
            {},
        ):
            shown = patch(client, user, conversation, change)
            expected |= {name: value for name, value in change.items() if name in expected}
            assert shown == expected | {"updated_at": shown["updated_at"]}
        [listed] = client.get(f"{PATH}/search", headers=user.headers).json()["items"]
        assert listed == shown

    def test_title_set_by_a_user_is_kept(
        self, client: TestClient, user: ApiUser, sandbox: Sandbox, conversation: Conversation, database: Database
    ) -> None:
        patch(client, user, conversation, {"title": "Mine"})
        report = json.dumps(conversation_report(conversation.id, title="The agent's", execution_status="idle"))
        headers = {"X-Session-API-Key": session_key_of(sandbox)} | JSON
        assert client.post("/api/v1/webhooks/conversations", content=report, headers=headers).status_code == 200
        assert as_stored(database, conversation).title == "Mine"
        for nothing in (None, " "):
            patch(client, user, conversation, {"title": nothing})
            row = as_stored(database, conversation)
            assert (row.title, row.title_settled) == (f"Conversation {conversation.id[:5]}", False)

    def test_change_of_the_repository_clears_branch_and_provider(
        self, client: TestClient, user: ApiUser, conversation: Conversation
    ) -> None:
        patch(
            client, user, conversation, {"selected_repository": "a/b", "selected_branch": "x", "git_provider": "github"}
        )
        shown = patch(client, user, conversation, {"selected_repository": None})
        assert (shown["selected_repository"], shown["selected_branch"], shown["git_provider"]) == (None, None, None)

    def test_patch_is_in_the_change_log(
        self, client: TestClient, user: ApiUser, conversation: Conversation, database: Database
    ) -> None:
        before = as_stored(database, conversation).updated_at
        patch(client, user, conversation, {"title": "x"})
        changed = as_stored(database, conversation).updated_at
        assert changed > before
        patch(client, user, conversation, {})
        patch(client, user, conversation, {"unknown": 1})
        assert as_stored(database, conversation).updated_at == changed

    @pytest.mark.parametrize(
        "body",
        [
            {"title": 7},
            {"title": "x" * 501},
            {"public": "perhaps"},
            {"selected_repository": "no-slash"},
            {"selected_repository": "a;b/c"},
            {"selected_branch": "a..b"},
            {"git_provider": "sourceforge"},
            {"selected_repository": None, "selected_branch": "main"},
            {"selected_repository": "", "git_provider": "github"},
            [],
        ],
    )
    def test_bad_changes_are_refused(
        self, client: TestClient, user: ApiUser, conversation: Conversation, body: Any
    ) -> None:
        response = client.patch(f"{PATH}/{conversation.id}", json=body, headers=user.headers)
        assert response.status_code == 422

    def test_other_users_conversation_is_a_404(
        self, client: TestClient, user: ApiUser, other_user: ApiUser, conversation: Conversation, database: Database
    ) -> None:
        hidden = make_conversation(database, user, make_sandbox(database, user), listed=False)
        for owner, one, status in (
            (other_user, conversation.id, 404),
            (user, hidden.id, 404),
            (user, new_id(), 404),
            (user, "nonsense", 400),
        ):
            response = client.patch(f"{PATH}/{one}", json={"title": "x"}, headers=owner.headers)
            assert response.status_code == status
        assert as_stored(database, conversation).title == conversation.title


def _archive(client: TestClient, user: ApiUser, conversation: Conversation) -> zipfile.ZipFile:
    response = client.get(f"{PATH}/{conversation.id}/download", headers=user.headers)
    assert (response.status_code, response.headers["Content-Type"]) == (200, "application/zip")
    dashed = conversation_report(conversation.id)["id"]
    assert response.headers["Content-Disposition"] == f'attachment; filename="conversation_{dashed}.zip"'
    return zipfile.ZipFile(io.BytesIO(response.content))


def _caller(client: TestClient, user: ApiUser) -> Caller:
    key = client.get("/api/keys/current", headers=user.headers).json()
    return Caller(user.id, user.name, key["id"], is_browser=False, list_version="", _request=Mock())


class TestDownload:
    @pytest.mark.parametrize("status", [Status.RUNNING, Status.PAUSED, Status.DELETED])
    def test_archive_has_metadata_and_events_in_order(
        self, client: TestClient, user: ApiUser, database: Database, status: Status, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(conversation_export, "PAGE", 2)
        sandbox = make_sandbox(database, user, status=status)
        conversation = make_conversation(database, user, sandbox, title="A title")
        ids = [f"e{number}" for number in range(5)]
        for number, one in reversed(list(enumerate(ids))):
            make_event(database, conversation, id=one, timestamp=FIRST + timedelta(seconds=number))
        archive = _archive(client, user, conversation)
        names = [f"event_{number:06}_{one}.json" for number, one in enumerate(ids)]
        assert archive.namelist() == ["meta.json", *names]
        assert [json.loads(archive.read(name))["id"] for name in names] == ids
        meta = json.loads(archive.read("meta.json"))
        assert (meta["id"], meta["title"]) == (conversation.id, "A title")
        assert not {"session_api_key", "conversation_url"} & meta.keys()
        assert session_key_of(sandbox).encode() not in archive.read("meta.json")

    def test_download_without_events_is_complete(
        self, client: TestClient, user: ApiUser, conversation: Conversation
    ) -> None:
        assert _archive(client, user, conversation).namelist() == ["meta.json"]

    def test_large_event_is_not_indented(
        self, client: TestClient, user: ApiUser, conversation: Conversation, database: Database
    ) -> None:
        deep: Any = "x"
        for _ in range(90):
            deep = [deep]
        for number, copies in enumerate((1, 2_000)):
            body = {"deep": [deep] * copies}
            make_event(database, conversation, body=body, timestamp=FIRST + timedelta(seconds=number))
        archive = _archive(client, user, conversation)
        _, small, large = (archive.read(name) for name in archive.namelist())
        assert small.count(b"\n") > 90
        assert json.loads(large) == body
        assert len(large) == len(json.dumps(body, separators=(",", ":")))

    def test_id_of_an_event_is_not_used_as_a_path(
        self, client: TestClient, user: ApiUser, conversation: Conversation, database: Database
    ) -> None:
        make_event(database, conversation, id="../../etc/passwd")
        archive = _archive(client, user, conversation)
        assert archive.namelist() == ["meta.json", "event_000000_______etc_passwd.json"]

    def test_download_holds_no_connection_and_no_event_while_it_is_sent(
        self,
        client: TestClient,
        user: ApiUser,
        conversation: Conversation,
        context: Context,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(conversation_export, "PAGE", 2)
        for _ in range(5):
            make_event(context.database, conversation)
        shown = AppConversation.model_validate(client.get(f"{PATH}/{conversation.id}", headers=user.headers).json())
        pool = context.database.engine.pool
        assert isinstance(pool, QueuePool)
        read: list[ReferenceType[Event]] = []
        found = events.search

        def search(*arguments: Any, **options: Any) -> Page[Event]:
            page = found(*arguments, **options)
            read.extend(map(ref, page.items))
            return page

        monkeypatch.setattr(events, "search", search)
        pieces = conversation_export.export(context.database, shown, _caller(client, user))
        held = [(pool.checkedout(), sum(event() is not None for event in read)) for _ in pieces]
        assert len(read) == 5
        assert held == [(0, 0)] * 3

    @pytest.mark.parametrize("ends", ["key", "conversation"])
    def test_download_ends_incomplete_with_its_key_or_conversation(
        self,
        client: TestClient,
        user: ApiUser,
        conversation: Conversation,
        database: Database,
        monkeypatch: pytest.MonkeyPatch,
        ends: str,
    ) -> None:
        """A client may read slowly, and so get events that are added much later, or miss those that are deleted."""
        monkeypatch.setattr(conversation_export, "PAGE", 1)
        for _ in range(3):
            make_event(database, conversation)
        found = events.search

        def search_and_end(*arguments: Any, **options: Any) -> Page[Event]:
            page = found(*arguments, **options)
            with database.transaction() as session:
                if ends == "key":
                    api_keys.revoke_key(session, user.key)
                else:
                    deletion.delete_conversation(session, conversation.id, user.id, due_at=now())
            return page

        monkeypatch.setattr(events, "search", search_and_end)
        response = client.get(f"{PATH}/{conversation.id}/download", headers=user.headers)
        assert response.content.count(b"PK\3\4") == 2  # the metadata and the first event
        assert not zipfile.is_zipfile(io.BytesIO(response.content))

    def test_conversation_that_exceeds_the_archive_limit_is_a_413(
        self,
        client: TestClient,
        user: ApiUser,
        conversation: Conversation,
        database: Database,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(conversation_export, "MAX_EVENTS", 1)
        for _ in range(2):
            make_event(database, conversation)
        response = client.get(f"{PATH}/{conversation.id}/download", headers=user.headers)
        assert (response.status_code, "2 events" in response.json()["detail"]) == (413, True)

    def test_other_users_conversation_is_a_404(
        self, client: TestClient, user: ApiUser, other_user: ApiUser, conversation: Conversation
    ) -> None:
        for owner, one, status in ((other_user, conversation.id, 404), (user, new_id(), 404), (user, "x", 400)):
            assert client.get(f"{PATH}/{one}/download", headers=owner.headers).status_code == status
