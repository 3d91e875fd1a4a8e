"""The work on a conversation that no webhook does: reading its title, and interrupting its agent at the budget."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from shared.changes import change_feed
from shared.changes.recorder import Kind
from shared.clock import now
from shared.conversations.webhook_reports import MAX_TITLE_LENGTH
from shared.models import Conversation, Sandbox
from shared.states import Desired, Status
from tests.doubles import RecordingPublisher
from tests.factories import ApiUser, make_conversation
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.conversation import FakeConversation
from tests.fakes.engine import FakeEngine
from tests.rows import all_rows
from tests.waiting import eventually
from tests.worker.conversations.message_delivery.messages import add_messages, assert_done, pending, received_texts
from tests.worker.scenarios import assert_at_rest, change, row, running, server_of, set_desired
from worker.context import MAX_IN_SANDBOX, WorkerContext
from worker.conversations.refresh import MAX_TITLE_WAIT, refresh_conversation
from worker.sandboxes.reconciler import reconcile

OVER_BUDGET: dict[str, Any] = {
    "max_budget": 1.0,
    "metrics": {"accumulated_cost": 2.0},
    "execution_status": "running",
    "title_settled": True,
}


@pytest.fixture
def conversation(context: WorkerContext, user: ApiUser, sandbox: Sandbox) -> Conversation:
    return make_conversation(context.database, user, sandbox, due_at=now(), title="For now")


@pytest.fixture
def fake(server: FakeAgentServer, conversation: Conversation) -> FakeConversation:
    """The agent server's copy of the conversation."""
    return server.add(conversation.id)


def refreshed(context: WorkerContext, conversation: Conversation) -> Conversation:
    refresh_conversation(context, conversation.id)
    return row(context, Conversation, conversation.id)


def last_change(context: WorkerContext, user: ApiUser) -> int:
    with context.database.reading() as session:
        return change_feed.last(session, [user.id]).get(user.id, 0)


def changes_after(context: WorkerContext, user: ApiUser, number: int) -> list[tuple[str, str]]:
    """The changes that `/changes` shows the user after that number."""
    with context.database.reading() as session:
        entries = change_feed.read(session, user.id, number)
    assert entries is not None
    return [(entry.kind, entry.row_id) for entry in entries]


class TestTitle:
    def test_title_is_written_when_the_server_has_it(
        self, context: WorkerContext, conversation: Conversation, fake: FakeConversation
    ) -> None:
        found = refreshed(context, conversation)
        assert (found.title, found.title_settled, found.attempt) == ("For now", False, 0)
        assert found.due_at
        assert found.due_at > found.updated_at
        fake.title = "A better one"
        found = refreshed(context, conversation)
        assert (found.title, found.title_settled, found.attempt) == ("A better one", True, 0)
        assert found.updated_at > conversation.updated_at
        assert_at_rest(found)

    def test_owner_s_change_feed_has_the_title(
        self, context: WorkerContext, user: ApiUser, conversation: Conversation, fake: FakeConversation
    ) -> None:
        before = last_change(context, user)
        refresh_conversation(context, conversation.id)
        assert changes_after(context, user, before) == []
        fake.title = "A better one"
        refresh_conversation(context, conversation.id)
        refresh_conversation(context, conversation.id)
        assert changes_after(context, user, before) == [(Kind.CONVERSATION, conversation.id)]

    def test_title_that_never_comes_is_polled_until_the_timeout(
        self, context: WorkerContext, conversation: Conversation, fake: FakeConversation, server: FakeAgentServer
    ) -> None:
        assert refreshed(context, conversation).due_at is not None
        for age in (MAX_TITLE_WAIT, -MAX_TITLE_WAIT):  # negative: the database's clock was set back since
            change(context, Conversation, conversation.id, updated_at=now() - age, due_at=now())
            assert_at_rest(refreshed(context, conversation))
        assert server.calls == ["get_conversation"] * 3

    def test_title_that_comes_late_counts_no_failed_attempt(
        self, context: WorkerContext, conversation: Conversation, fake: FakeConversation, server: FakeAgentServer
    ) -> None:
        for _ in range(context.settings.max_attempts):
            assert refreshed(context, conversation).due_at is not None
        server.refuse = {"get_conversation": httpx.Response(401)}
        assert refreshed(context, conversation).due_at is not None
        server.refuse = {}
        fake.title = "A better one"
        assert refreshed(context, conversation).title == "A better one"

    def test_title_by_a_user_causes_no_request(
        self, context: WorkerContext, conversation: Conversation, fake: FakeConversation, server: FakeAgentServer
    ) -> None:
        fake.title = "The server's"
        change(context, Conversation, conversation.id, title="A user's", title_settled=True)
        assert refreshed(context, conversation).title == "A user's"
        assert server.calls == []

    def test_title_by_a_user_during_the_request_is_kept(
        self, context: WorkerContext, conversation: Conversation, fake: FakeConversation, server: FakeAgentServer
    ) -> None:
        fake.title = "The server's"
        server.after = lambda _method: change(
            context, Conversation, conversation.id, title="A user's", title_settled=True
        )
        found = refreshed(context, conversation)
        assert found.title == "A user's"
        assert_at_rest(found)

    def test_title_is_cut_to_the_max_length(
        self, context: WorkerContext, conversation: Conversation, fake: FakeConversation
    ) -> None:
        fake.title = "long " * MAX_TITLE_LENGTH
        assert refreshed(context, conversation).title == fake.title[:MAX_TITLE_LENGTH]

    @pytest.mark.usefixtures("server")
    def test_title_of_a_conversation_that_its_server_does_not_know(
        self, context: WorkerContext, conversation: Conversation
    ) -> None:
        assert_at_rest(refreshed(context, conversation))

    def test_title_waits_for_a_server_that_does_not_respond(
        self, context: WorkerContext, conversation: Conversation, fake: FakeConversation, server: FakeAgentServer
    ) -> None:
        def refuse(_method: str) -> None:
            raise httpx.ConnectError("refused")

        server.before = refuse
        found = refreshed(context, conversation)
        assert (found.attempt, found.lease_until) == (0, None)
        assert found.due_at


class TestBudget:
    @pytest.mark.parametrize(
        ("columns", "interrupted"),
        [
            ({"max_budget": 1.0, "metrics": {"accumulated_cost": 1.0}, "execution_status": "running"}, True),
            ({"max_budget": 1.0, "metrics": {"accumulated_cost": 0.9}, "execution_status": "running"}, False),
            ({"max_budget": 1.0, "metrics": {"accumulated_cost": 2.0}, "execution_status": "finished"}, False),
            ({"max_budget": None, "metrics": {"accumulated_cost": 9.0}, "execution_status": "running"}, False),
            ({"max_budget": 1.0, "metrics": None, "execution_status": "running"}, False),
        ],
    )
    def test_budget_is_enforced(
        self,
        context: WorkerContext,
        conversation: Conversation,
        fake: FakeConversation,
        server: FakeAgentServer,
        columns: dict[str, Any],
        interrupted: bool,
    ) -> None:
        fake.execution_status = "running"
        change(context, Conversation, conversation.id, title_settled=True, **columns)
        assert_at_rest(refreshed(context, conversation))
        assert server.calls == (["interrupt"] if interrupted else [])
        assert (fake.execution_status == "paused") is interrupted

    def test_budget_is_enforced_while_a_message_can_not_be_delivered(
        self,
        context: WorkerContext,
        user: ApiUser,
        conversation: Conversation,
        fake: FakeConversation,
        server: FakeAgentServer,
    ) -> None:
        fake.execution_status = "running"
        change(context, Conversation, conversation.id, **OVER_BUDGET)
        add_messages(context, user, conversation.id, "one")
        server.refuse = {"send_message": httpx.Response(503)}
        assert refreshed(context, conversation).due_at is not None
        assert fake.execution_status == "paused"
        assert len(pending(context)) == 1

    def test_message_does_not_run_an_agent_that_has_spent_its_budget(
        self, context: WorkerContext, user: ApiUser, conversation: Conversation, fake: FakeConversation
    ) -> None:
        fake.execution_status = "running"
        change(context, Conversation, conversation.id, **OVER_BUDGET)
        add_messages(context, user, conversation.id, "one")
        refresh_conversation(context, conversation.id)
        assert (received_texts(fake), fake.execution_status) == (["one"], "paused")
        assert_done(context, conversation.id)

    @pytest.mark.parametrize("status", [400, 409])
    def test_server_that_refuses_to_interrupt_gets_the_messages(
        self,
        context: WorkerContext,
        user: ApiUser,
        conversation: Conversation,
        fake: FakeConversation,
        server: FakeAgentServer,
        status: int,
    ) -> None:
        change(context, Conversation, conversation.id, **OVER_BUDGET)
        add_messages(context, user, conversation.id, "one")
        server.refuse = {"interrupt": httpx.Response(status, json={"detail": "no"})}
        refresh_conversation(context, conversation.id)
        assert received_texts(fake) == ["one"]
        assert_done(context, conversation.id)

    @pytest.mark.parametrize(("status", "retried"), [(401, True), (400, False), (409, False)])
    @pytest.mark.parametrize("call", ["interrupt", "get_conversation"])
    def test_server_that_refuses_causes_no_failed_run(
        self,
        context: WorkerContext,
        conversation: Conversation,
        fake: FakeConversation,
        server: FakeAgentServer,
        caplog: pytest.LogCaptureFixture,
        call: str,
        status: int,
        retried: bool,
    ) -> None:
        change(context, Conversation, conversation.id, **(OVER_BUDGET if call == "interrupt" else {"title": "For now"}))
        server.refuse = {call: httpx.Response(status, json={"detail": "no"})}
        found = refreshed(context, conversation)
        assert ((found.due_at is not None), found.attempt) == (retried, 0)
        assert "work_failed" not in caplog.text


@pytest.mark.parametrize(("desired", "status"), [(Desired.PAUSED, Status.PAUSED), (Desired.DELETED, Status.DELETED)])
def test_sandbox_that_does_not_run_gets_no_request(
    context: WorkerContext,
    sandbox: Sandbox,
    conversation: Conversation,
    server: FakeAgentServer,
    desired: Desired,
    status: Status,
) -> None:
    set_desired(context, sandbox.id, desired)
    reconcile(context, sandbox.id)
    assert row(context, Sandbox, sandbox.id).status == status
    server.calls.clear()
    assert_at_rest(refreshed(context, conversation))
    assert server.calls == []


@pytest.mark.usefixtures("conversation")
def test_job_of_an_unknown_conversation_is_dropped(
    context: WorkerContext, server: FakeAgentServer, publisher: RecordingPublisher
) -> None:
    publisher.jobs.clear()
    before = all_rows(context.database)
    refresh_conversation(context, "0" * 32)
    assert all_rows(context.database) == before
    assert (publisher.jobs, server.calls) == ([], [])


def test_silent_server_takes_few_job_threads(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, sandbox: Sandbox, server: FakeAgentServer
) -> None:
    """Reports may name any number of conversations, and each of these causes requests."""
    held = threading.Event()

    def hold(_method: str) -> None:
        held.wait(30)

    server.before = hold
    stuck = [make_conversation(context.database, user, sandbox, due_at=now()) for _ in range(MAX_IN_SANDBOX + 1)]
    other = make_conversation(context.database, user, row(context, Sandbox, running(context, user)), due_at=now())
    server_of(engine, other.sandbox_id).add(other.id).title = "A better one"
    with ThreadPoolExecutor(MAX_IN_SANDBOX) as threads:
        for one in stuck[:-1]:
            threads.submit(refresh_conversation, context, one.id)
        eventually(lambda: len(server.calls) == MAX_IN_SANDBOX)
        waiting = refreshed(context, stuck[-1])
        assert (waiting.attempt, waiting.lease_until, waiting.due_at is not None) == (0, None, True)
        assert refreshed(context, other).title == "A better one"
        held.set()
    assert len(server.calls) == MAX_IN_SANDBOX
    refresh_conversation(context, stuck[-1].id)
    assert len(server.calls) == MAX_IN_SANDBOX + 1


@pytest.mark.usefixtures("fake")
def test_run_that_succeeds_resets_the_failed_attempts(context: WorkerContext, conversation: Conversation) -> None:
    change(context, Conversation, conversation.id, attempt=4, title_settled=True)
    assert refreshed(context, conversation).attempt == 0
