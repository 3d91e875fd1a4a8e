"""The reason of a conversation that is in error or waits, which is shown only for as long as it applies."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.clock import after
from shared.db.database import Database
from shared.leasing.limits import MAX_SECONDS
from shared.models import Conversation, Sandbox
from shared.states import Status
from tests.api.agent_reports import conversation_report, event_report, update_report
from tests.factories import ApiUser, make_conversation, make_sandbox
from tests.rows import as_stored

Post = Callable[..., int]
PATH = "/api/v1/app-conversations"
NOTHING = (None, None)
WHY = ("LLMAuthenticationError", "the key is not taken")


def failure(after: float) -> dict[str, Any]:
    return event_report("ConversationErrorEvent", after, code=WHY[0], detail=WHY[1])


def status(value: str, after: float) -> dict[str, Any]:
    return update_report("execution_status", value, after)


@pytest.fixture
def reason(client: TestClient, user: ApiUser, conversation: Conversation) -> Callable[[], tuple[Any, Any]]:
    """Return a function that reads the reason, which must be the same in each kind of read."""

    def read() -> tuple[Any, Any]:
        one = client.get(f"{PATH}/{conversation.id}", headers=user.headers).json()
        [listed] = client.get(f"{PATH}/search", headers=user.headers).json()["items"]
        assert one == listed
        return one["execution_reason"], one["execution_detail"]

    return read


def test_error_shows_its_reason_until_the_agent_continues(
    post: Post, conversation: Conversation, reason: Callable[[], tuple[Any, Any]]
) -> None:
    assert post(f"/events/{conversation.id}", [status("running", 1)]) == 200
    assert reason() == NOTHING
    assert post(f"/events/{conversation.id}", [status("error", 2), failure(2.01)]) == 200
    assert reason() == WHY
    assert post(f"/events/{conversation.id}", [status("running", 3)]) == 200
    assert reason() == NOTHING


def test_reports_of_an_error_may_come_in_any_order(
    post: Post, user: ApiUser, sandbox: Sandbox, database: Database
) -> None:
    state = update_report("full_state", {"execution_status": "error"}, 2.02)
    reports = [status("running", 1), status("error", 2), failure(2.01), state]
    for order in itertools.permutations(range(4)):
        each = make_conversation(database, user, sandbox)
        for number in order:
            assert post(f"/events/{each.id}", [reports[number] | {"id": f"{each.id}{number}"}]) == 200
        found = as_stored(database, each)
        assert (found.execution_status, found.execution_reason, found.execution_detail) == ("error", *WHY), order


def test_error_is_explained_after_its_conversation_was_described(
    post: Post, conversation: Conversation, reason: Callable[[], tuple[Any, Any]]
) -> None:
    assert post("/conversations", conversation_report(conversation.id, 9, execution_status="error")) == 200
    assert reason() == NOTHING
    assert post(f"/events/{conversation.id}", [status("running", 1), status("error", 2), failure(2.01)]) == 200
    assert reason() == WHY


def test_error_of_an_earlier_run_is_not_shown(
    post: Post, conversation: Conversation, reason: Callable[[], tuple[Any, Any]]
) -> None:
    assert post(f"/events/{conversation.id}", [status("running", 5), failure(2)]) == 200
    assert post(f"/events/{conversation.id}", [status("error", 6)]) == 200
    assert reason() == NOTHING
    assert post(f"/events/{conversation.id}", [failure(3)]) == 200
    assert reason() == NOTHING


def test_late_error_of_an_earlier_run_does_not_replace_the_last_one(
    post: Post, conversation: Conversation, reason: Callable[[], tuple[Any, Any]]
) -> None:
    last = [status("running", 5), status("error", 6), failure(6.01), status("error", 7)]
    assert post(f"/events/{conversation.id}", last) == 200
    first = event_report("ConversationErrorEvent", 3, code="Other", detail="another error")
    assert post(f"/events/{conversation.id}", [first]) == 200
    assert reason() == WHY


def test_late_error_does_not_hide_that_the_node_was_lost(
    post: Post, user: ApiUser, sandbox: Sandbox, database: Database
) -> None:
    lost = make_conversation(
        database, user, sandbox, execution_status="error", execution_status_at=after(0), execution_reason="node_lost"
    )
    assert post(f"/events/{lost.id}", [failure(1)]) == 200
    assert as_stored(database, lost).execution_reason == "node_lost"


def test_unstorable_reasons_are_sanitized(
    post: Post, conversation: Conversation, reason: Callable[[], tuple[Any, Any]]
) -> None:
    strange: list[dict[str, Any]] = [{}, {"code": 7, "detail": ["x"]}, {"code": "c" * 100, "detail": "a\0" * 3000}]
    for number, fields in enumerate(strange):
        reports = [status("error", number), event_report("ConversationErrorEvent", number + 0.5, **fields)]
        assert post(f"/events/{conversation.id}", reports) == 200
        assert all(reason())
    assert [len(text) for text in reason()] == [64, 2000]


def test_sandbox_that_does_not_run_hides_the_reason_with_the_status(
    client: TestClient, user: ApiUser, database: Database
) -> None:
    known = dict(zip(("execution_reason", "execution_detail"), WHY, strict=True))
    paused = make_sandbox(database, user, status=Status.PAUSED)
    conversation = make_conversation(database, user, paused, execution_status="error", **known)
    shown = client.get(f"{PATH}/{conversation.id}", headers=user.headers).json()
    assert (shown["execution_status"], shown["execution_reason"], shown["execution_detail"]) == (None, *NOTHING)


class TestSilence:
    def test_running_agent_is_due_for_a_check(
        self, post: Post, database: Database, user: ApiUser, sandbox: Sandbox
    ) -> None:
        for value, expected in (("running", True), ("finished", False)):
            each = make_conversation(database, user, sandbox, title_settled=True)
            assert post(f"/events/{each.id}", [status(value, 1)]) == 200
            due_at = as_stored(database, each).due_at
            assert (due_at is not None) is expected
            assert due_at is None or due_at <= after(MAX_SECONDS)

    def test_earlier_check_stays_due(self, post: Post, database: Database, user: ApiUser, sandbox: Sandbox) -> None:
        soon = after(2)
        each = make_conversation(database, user, sandbox, title_settled=True, due_at=soon)
        assert post(f"/events/{each.id}", [status("running", 1)]) == 200
        assert as_stored(database, each).due_at == soon

    @pytest.mark.parametrize(
        ("reports", "stays"),
        [
            (event_report("ActionEvent", 9), False),
            (status("finished", 9), False),
            (update_report("stats", {}, 9), True),
        ],
        ids=["action", "finished", "stats"],
    )
    def test_silence_is_shown_until_the_next_event(
        self,
        post: Post,
        client: TestClient,
        user: ApiUser,
        database: Database,
        sandbox: Sandbox,
        reports: Any,
        stays: bool,
    ) -> None:
        each = make_conversation(
            database, user, sandbox, execution_status="running", execution_reason="model_silent", execution_detail="x"
        )
        shown = client.get(f"{PATH}/{each.id}", headers=user.headers).json()
        assert (shown["execution_status"], shown["execution_reason"]) == ("running", "model_silent")
        assert post(f"/events/{each.id}", [reports]) == 200
        assert (as_stored(database, each).execution_reason == "model_silent") is stays
