"""Conversations whose agents ran when their container ended do not stay running after the next boot."""

from collections.abc import Callable
from datetime import timedelta

import httpx
import pytest
from sqlmodel import col, select

from shared.agent_server.limits import MAX_BYTES
from shared.clock import now
from shared.leasing import leases
from shared.models import ChangeEntry, Conversation, Sandbox
from shared.sandboxes import deadlines
from shared.sandboxes.due_deadlines import apply_deadline, overdue
from shared.states import Desired, Status
from tests.factories import NODE_ID, ApiUser, make_conversation, make_event
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.engine import FakeEngine
from tests.worker.conversations.message_delivery.messages import add_messages, pending, received_texts
from tests.worker.scenarios import assert_at_rest, change, deliver, row, server_of, set_desired
from worker.context import WorkerContext
from worker.conversations.ended_runs import MAX_STATUS_WAIT
from worker.conversations.refresh import refresh_conversation
from worker.engine.protocol import ContainerState
from worker.loops.engine_events import follow_events
from worker.loops.recheck import recheck
from worker.sandboxes.container_spec import container_name

BEGAN = now() - timedelta(minutes=5)


@pytest.fixture
def conversation(context: WorkerContext, user: ApiUser, sandbox: Sandbox) -> Conversation:
    times = {"execution_status_at": BEGAN, "updated_at": BEGAN}
    return make_conversation(context.database, user, sandbox, execution_status="running", title_settled=True, **times)


def remove(engine: FakeEngine, sandbox_id: str) -> None:
    """Remove container and volume outside this service."""
    engine.remove(container_name(sandbox_id))


def kill(engine: FakeEngine, sandbox_id: str) -> None:
    """End the container; its files stay."""
    engine.containers[container_name(sandbox_id)].state = ContainerState.EXITED


def reboot(
    context: WorkerContext, engine: FakeEngine, sandbox_id: str, end: Callable[[FakeEngine, str], None] = kill
) -> None:
    """End the container outside this service, and resume the sandbox."""
    end(engine, sandbox_id)
    recheck(context, sandbox_id)
    deliver(context)
    assert row(context, Sandbox, sandbox_id).status == Status.ERROR
    set_desired(context, sandbox_id, Desired.RUNNING)
    recheck(context, sandbox_id)
    deliver(context)
    assert row(context, Sandbox, sandbox_id).status == Status.RUNNING


def test_agent_whose_files_were_removed_is_in_error(
    context: WorkerContext, engine: FakeEngine, conversation: Conversation
) -> None:
    reboot(context, engine, conversation.sandbox_id, remove)
    found = row(context, Conversation, conversation.id)
    assert (found.execution_status, found.execution_reason) == ("error", "conversation_lost")
    assert found.updated_at > BEGAN
    assert_at_rest(found)
    with context.database.reading() as session:
        entries = session.exec(select(ChangeEntry.status).where(col(ChangeEntry.row_id) == conversation.id)).all()
    assert list(entries) == ["error"]


def test_idle_sandbox_is_paused_after_its_files_were_removed(
    context: WorkerContext, engine: FakeEngine, conversation: Conversation
) -> None:
    reboot(context, engine, conversation.sandbox_id, remove)
    with context.database.transaction() as session:
        sandbox = session.get_one(Sandbox, conversation.sandbox_id)
        deadlines.set_own(session, sandbox, {"freeze_after_seconds": 60})
    change(context, Sandbox, conversation.sandbox_id, deadline_at=BEGAN)
    with context.database.transaction() as session:
        [deadline] = overdue(session, NODE_ID)
        assert apply_deadline(session, deadline, due_at=now())


@pytest.mark.parametrize("stats", [{}, {"costs": "1" * MAX_BYTES}], ids=["small", "large"])
@pytest.mark.parametrize("status", ["finished", "paused", "error"])
def test_end_that_was_not_reported_is_read_from_the_server(
    context: WorkerContext,
    engine: FakeEngine,
    server: FakeAgentServer,
    conversation: Conversation,
    status: str,
    stats: dict[str, str],
) -> None:
    server.add(conversation.id, execution_status=status, stats=stats)
    reboot(context, engine, conversation.sandbox_id)
    found = row(context, Conversation, conversation.id)
    assert (found.execution_status, found.execution_reason) == (status, None)


def test_agent_that_runs_stays_running(
    context: WorkerContext, engine: FakeEngine, server: FakeAgentServer, conversation: Conversation
) -> None:
    server.add(conversation.id, execution_status="running")
    reboot(context, engine, conversation.sandbox_id)
    assert row(context, Conversation, conversation.id).execution_status == "running"


@pytest.mark.parametrize("desired", [Desired.RUNNING, Desired.STOPPED])
def test_end_is_read_from_a_server_that_was_booted_outside(
    context: WorkerContext, engine: FakeEngine, server: FakeAgentServer, conversation: Conversation, desired: Desired
) -> None:
    """The container ends, or is stopped, and an operator starts it at the engine."""
    set_desired(context, conversation.sandbox_id, desired)
    recheck(context, conversation.sandbox_id)
    deliver(context)
    kill(engine, conversation.sandbox_id)
    recheck(context, conversation.sandbox_id)
    deliver(context)
    assert row(context, Sandbox, conversation.sandbox_id).status != Status.RUNNING
    server.add(conversation.id, execution_status="finished")
    engine.start(container_name(conversation.sandbox_id))
    recheck(context, conversation.sandbox_id)
    deliver(context)
    assert row(context, Sandbox, conversation.sandbox_id).status == Status.RUNNING
    assert row(context, Conversation, conversation.id).execution_status == "finished"


@pytest.mark.parametrize("is_paused", [False, True])
def test_end_is_read_from_a_server_that_was_restarted_between_two_checks(
    context: WorkerContext, engine: FakeEngine, server: FakeAgentServer, conversation: Conversation, is_paused: bool
) -> None:
    """`docker restart` of a container that runs, or is paused: at the next check it runs."""
    if is_paused:
        engine.pause(container_name(conversation.sandbox_id))
        recheck(context, conversation.sandbox_id)
        deliver(context)
        assert row(context, Sandbox, conversation.sandbox_id).status == Status.PAUSED
    server.add(conversation.id, execution_status="finished")
    kill(engine, conversation.sandbox_id)
    engine.start(container_name(conversation.sandbox_id))
    recheck(context, conversation.sandbox_id)
    deliver(context)
    assert row(context, Sandbox, conversation.sandbox_id).status == Status.RUNNING
    assert row(context, Conversation, conversation.id).execution_status == "finished"
    written = row(context, Sandbox, conversation.sandbox_id).updated_at
    recheck(context, conversation.sandbox_id)
    deliver(context)
    assert row(context, Sandbox, conversation.sandbox_id).updated_at == written


def test_end_is_read_from_a_server_that_was_restarted_while_no_worker_followed_the_events(
    context: WorkerContext,
    engine: FakeEngine,
    server: FakeAgentServer,
    conversation: Conversation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.add(conversation.id, execution_status="finished")
    kill(engine, conversation.sandbox_id)
    engine.start(container_name(conversation.sandbox_id))
    monkeypatch.setattr(engine, "follow", lambda _installation: iter(()))  # the stream of events ends immediately
    follow_events(context)
    deliver(context)
    assert row(context, Conversation, conversation.id).execution_status == "finished"


@pytest.mark.parametrize("status", [403, 422])
def test_server_that_refuses_changes_nothing(
    context: WorkerContext, engine: FakeEngine, server: FakeAgentServer, conversation: Conversation, status: int
) -> None:
    server.refuse["get_conversation"] = httpx.Response(status, json={"detail": "no"})
    reboot(context, engine, conversation.sandbox_id)
    found = row(context, Conversation, conversation.id)
    assert (found.execution_status, found.attempt) == ("running", 0)


def test_server_that_fails_for_long_is_rarely_asked(
    context: WorkerContext, engine: FakeEngine, server: FakeAgentServer, conversation: Conversation
) -> None:
    server.refuse["get_conversation"] = httpx.Response(500)
    reboot(context, engine, conversation.sandbox_id)
    assert row(context, Conversation, conversation.id).due_at is not None
    booted_at = now() - MAX_STATUS_WAIT
    change(context, Sandbox, conversation.sandbox_id, status_changed_at=booted_at)
    change(context, Conversation, conversation.id, execution_status_at=booted_at - MAX_STATUS_WAIT)
    make_event(context.database, conversation, timestamp=booted_at - MAX_STATUS_WAIT)
    refresh_conversation(context, conversation.id)
    found = row(context, Conversation, conversation.id)
    assert (found.execution_status, found.execution_reason, found.attempt) == ("running", None, 0)
    assert found.due_at is not None
    assert 10 < (found.due_at - now()).total_seconds() <= 15
    del server.refuse["get_conversation"]
    change(context, Conversation, conversation.id, due_at=now())
    refresh_conversation(context, conversation.id)
    found = row(context, Conversation, conversation.id)
    assert (found.execution_status, found.due_at) == ("error", None)


@pytest.mark.parametrize("reported", ["status", "event"])
def test_agent_that_has_reported_since_the_boot_is_not_asked_for(
    context: WorkerContext, engine: FakeEngine, conversation: Conversation, reported: str
) -> None:
    later = now() + timedelta(minutes=5)
    if reported == "status":
        change(context, Conversation, conversation.id, execution_status_at=later)
    else:
        make_event(context.database, conversation, timestamp=later)
    reboot(context, engine, conversation.sandbox_id)
    assert "get_conversation" not in server_of(engine, conversation.sandbox_id).calls
    assert row(context, Conversation, conversation.id).execution_status == "running"


def test_status_that_is_reported_during_the_request_is_kept(
    context: WorkerContext, engine: FakeEngine, server: FakeAgentServer, conversation: Conversation
) -> None:
    def report(_method: str) -> None:
        change(context, Conversation, conversation.id, execution_status_at=now())

    server.add(conversation.id, execution_status="finished")
    server.after = report
    reboot(context, engine, conversation.sandbox_id)
    assert row(context, Conversation, conversation.id).execution_status == "running"


def test_lease_that_is_lost_during_the_request_ends_the_run(
    context: WorkerContext, user: ApiUser, server: FakeAgentServer, conversation: Conversation
) -> None:
    """The other worker delivers the message: this one would send it a second time."""

    def lose_lease(_method: str) -> None:
        server.after = lambda _method: None
        change(context, Conversation, conversation.id, lease_until=now())
        with context.database.transaction() as session:
            assert leases.claim(session, Conversation, conversation.id, "worker-2", 15)

    fake = server.add(conversation.id, execution_status="finished")
    add_messages(context, user, conversation.id, "one")
    server.after = lose_lease
    refresh_conversation(context, conversation.id)
    assert (received_texts(fake), len(pending(context))) == ([], 1)
    found = row(context, Conversation, conversation.id)
    assert (found.lease_owner, found.execution_status) == ("worker-2", "running")


def test_resume_of_a_paused_sandbox_asks_for_nothing(
    context: WorkerContext, engine: FakeEngine, server: FakeAgentServer, conversation: Conversation
) -> None:
    engine.pause(container_name(conversation.sandbox_id))
    set_desired(context, conversation.sandbox_id, Desired.RUNNING)
    recheck(context, conversation.sandbox_id)
    deliver(context)
    assert server.calls == []
