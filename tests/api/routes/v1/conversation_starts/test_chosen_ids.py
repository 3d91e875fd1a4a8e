"""A conversation id chosen by the client makes a start idempotent."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.conversations import start as conversation_start
from shared.db.database import Database
from shared.ids import new_id
from shared.models import StartTask
from shared.states import Stage
from tests.api.routes.v1.conversation_starts.requests import _all_sandboxes, _start, _status, _task
from tests.doubles import RecordingPublisher
from tests.factories import (
    ApiUser,
    make_conversation,
    make_sandbox,
    make_start_task,
)


@pytest.mark.usefixtures("spec")
class TestChosenId:
    def test_repeated_request_starts_one_conversation(
        self, client: TestClient, user: ApiUser, database: Database, publisher: RecordingPublisher
    ) -> None:
        conversation_id = new_id()
        first = _start(client, user, conversation_id=conversation_id)
        jobs = list(publisher.jobs)
        assert _start(client, user, conversation_id=conversation_id) == first
        assert len(_all_sandboxes(database)) == 1
        assert publisher.jobs == jobs
        assert _task(database, first["id"]).conversation_id == conversation_id

    def test_concurrent_requests_start_one_conversation(
        self, client: TestClient, user: ApiUser, database: Database
    ) -> None:
        conversation_id = new_id()
        with ThreadPoolExecutor(4) as pool:
            requested = [pool.submit(_start, client, user, conversation_id=conversation_id) for _ in range(4)]
            ids = {future.result()["id"] for future in requested}
        assert len(ids) == len(_all_sandboxes(database)) == 1

    @pytest.mark.parametrize(
        "other",
        [
            {"title": "Other"},
            {"initial_message": {"content": [{"text": "Other"}]}},
            {"selected_repository": "o/other"},
            {"agent_type": "plan"},
            {"secrets": {"A": "x"}},
        ],
    )
    def test_used_id_with_another_request_is_a_409(
        self, client: TestClient, user: ApiUser, database: Database, other: dict[str, Any]
    ) -> None:
        conversation_id = new_id()
        first = {"initial_message": {"content": [{"text": "First"}]}, "conversation_id": conversation_id}
        shown = _start(client, user, **first)
        assert _status(client, user, **(first | other)) == 409
        assert _start(client, user, **first) == shown
        assert len(_all_sandboxes(database)) == 1

    def test_repeated_request_with_inherited_values_is_recognized(
        self, client: TestClient, user: ApiUser, database: Database
    ) -> None:
        sandbox = make_sandbox(database, user)
        parent = make_conversation(database, user, sandbox, selected_repository="o/r", llm_model="openai/m")
        request = {"conversation_id": new_id(), "parent_conversation_id": parent.id}
        assert _start(client, user, **request)["id"] == _start(client, user, **request)["id"]

    @pytest.mark.parametrize("sent", [{}, {"title": "First"}])
    def test_repeated_request_of_a_renamed_start_is_recognized(
        self, client: TestClient, user: ApiUser, sent: dict[str, str]
    ) -> None:
        request = sent | {"conversation_id": new_id()}
        first = _start(client, user, **request)
        for title in ("Second", "Third"):
            url = f"/api/conversations/{request['conversation_id']}"
            assert client.patch(url, json={"title": title}, headers=user.headers).json() is True
            again = _start(client, user, **request)
            assert (again["id"], again["request"]["title"]) == (first["id"], title)
        assert again["request"].keys() == first["request"].keys()
        assert _status(client, user, **(request | {"title": "Third"})) == 409

    def test_repeated_request_of_a_finished_start_shows_its_server(
        self, client: TestClient, user: ApiUser, database: Database
    ) -> None:
        task = make_start_task(database, user, make_sandbox(database, user), stage=Stage.READY)
        shown = _start(client, user, conversation_id=task.conversation_id)
        assert (shown["id"], shown["app_conversation_id"]) == (task.id, task.conversation_id)
        assert shown["agent_server_url"] == f"http://testserver/sandbox/{task.sandbox_id}"

    def test_id_of_a_concurrent_request_returns_its_task(
        self, client: TestClient, user: ApiUser, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        conversation_id = new_id()
        first = _start(client, user, conversation_id=conversation_id)
        find, calls = conversation_start._find_earlier, [0]

        def find_too_early(*args: Any) -> StartTask | None:
            calls[0] += 1
            return None if calls[0] == 1 else find(*args)

        monkeypatch.setattr(conversation_start, "_find_earlier", find_too_early)
        assert _start(client, user, conversation_id=conversation_id)["id"] == first["id"]
        assert len(_all_sandboxes(database)) == 1

    def test_taken_id_is_a_409(
        self, client: TestClient, user: ApiUser, other_user: ApiUser, database: Database
    ) -> None:
        theirs = make_start_task(database, other_user)
        mine = make_conversation(database, user, make_sandbox(database, user))
        for conversation_id in (theirs.conversation_id, mine.id):
            assert _status(client, user, conversation_id=conversation_id) == 409
