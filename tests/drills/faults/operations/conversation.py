"""Conversations: start, cancel, delete. Checks read the agent server's files from its container."""

from collections.abc import Mapping

from sqlalchemy import or_
from sqlmodel import col, select

from shared.models import Conversation, Sandbox, StartTask
from shared.states import Reason, Stage, Status
from tests.drills.engine_listing import sandbox_name
from tests.drills.faults.operation import ROUTINES, Act, Operation, Prepare
from tests.drills.faults.operations import sandbox
from tests.drills.faults.runner import PROCESSES, Runner
from tests.drills.faults.specs import CONVERSATIONAL_IMAGE, LOSING_IMAGE, REJECTING_IMAGE
from tests.drills.faults.user_requests import CONVERSATIONS, MESSAGE, send
from tests.drills.requests import Outcome, Verb
from tests.waiting import eventually

END = "DELETE /app-conversations/{conversation_id}"
FOLDER = "/workspace/conversations"
# The conversation's events, one per line, contain the messages.
COUNT_MESSAGES = r"""grep -F '"kind":"MessageEvent"' {folder}/events | wc -l"""


# --- subjects ---------------------------------------------------------------------------------------------------------


def accepting_conversations(runner: Runner) -> str:
    """A sandbox that accepts conversations."""
    return sandbox.running(runner, CONVERSATIONAL_IMAGE)


def rejecting_conversations(runner: Runner) -> str:
    """A sandbox that refuses conversations."""
    return sandbox.running(runner, REJECTING_IMAGE)


def losing_first_messages(runner: Runner) -> str:
    """A sandbox that loses the first message of each conversation."""
    return sandbox.running(runner, LOSING_IMAGE)


def with_conversation(runner: Runner) -> str:
    """A sandbox with a conversation in progress."""
    sandbox_id = accepting_conversations(runner)
    start_conversation(runner, sandbox_id)
    runner.await_given(lambda: stages(runner) == [Stage.READY] and runner.is_at_rest())
    return sandbox_id


def with_last_conversation(runner: Runner) -> str:
    """A conversation in a sandbox that is deleted with it."""
    sandbox_id = with_conversation(runner)
    with runner.service.database.transaction() as session:
        session.get_one(Sandbox, sandbox_id).goes_with_conversations = True
    return sandbox_id


def with_two_conversations(runner: Runner) -> str:
    """A sandbox with two conversations, one of which is not deleted."""
    sandbox_id = with_conversation(runner)
    send(runner, "POST", CONVERSATIONS, Verb.CONVERSE, json={"sandbox_id": sandbox_id, "initial_message": MESSAGE})
    runner.await_given(lambda: stages(runner) == [Stage.READY] * 2 and runner.is_at_rest())
    return sandbox_id


def with_deleted_conversation(runner: Runner) -> str:
    """A frozen sandbox with two conversations, one of which was deleted and is still at the agent server."""
    sandbox_id = with_two_conversations(runner)
    runner.client.pause(sandbox_id)
    runner.await_status(sandbox_id, Status.PAUSED)
    delete_conversation(runner, sandbox_id)
    runner.await_given(runner.is_at_rest)
    return sandbox_id


def with_held_start(runner: Runner) -> str:
    """A running sandbox, and a conversation's start that is held."""
    sandbox_id = accepting_conversations(runner)
    start_conversation(runner, sandbox_id)
    return sandbox_id


def stages(runner: Runner) -> list[str]:
    """The stage of each start task."""
    with runner.service.database.reading() as session:
        return list(session.exec(select(StartTask.stage)).all())


def conversation_id(runner: Runner) -> str:
    """The id of the only conversation."""
    with runner.service.database.reading() as session:
        return session.exec(select(Conversation.id)).one()


# --- start ------------------------------------------------------------------------------------------------------------


def start_conversation(runner: Runner, sandbox_id: str) -> None:
    """Start a conversation in this sandbox with all options and an idempotency key."""
    more = {"selected_repository": "acme/app", "git_provider": "github", "title": "A title"}
    _start(runner, sandbox_id, more)


def _start_untitled(runner: Runner, sandbox_id: str) -> None:
    """Start a conversation whose title must be generated."""
    _start(runner, sandbox_id, {})


def _start(runner: Runner, sandbox_id: str, more: dict[str, str]) -> None:
    content = {"sandbox_id": sandbox_id, "initial_message": MESSAGE} | more
    send(runner, "POST", CONVERSATIONS, Verb.CONVERSE, sandbox_id, json=content)


def _start_in_new_sandbox(runner: Runner, _subject: str) -> None:
    """Start a conversation in a new sandbox."""
    runner.client.converse()


def _assert_started_once(runner: Runner, sandbox_id: str) -> None:
    """Assert that a retry returns the same start, and that the conversation has its message once."""
    start_conversation(runner, sandbox_id)
    _assert_started_with_message(runner, sandbox_id)


def _assert_untitled_started_once(runner: Runner, sandbox_id: str) -> None:
    _start_untitled(runner, sandbox_id)
    _assert_started_with_message(runner, sandbox_id)


def _assert_started_with_message(runner: Runner, sandbox_id: str) -> None:
    eventually(runner.is_at_rest)
    assert stages(runner) == [Stage.READY]
    assert count_messages(runner, sandbox_id, conversation_id(runner)) == 1


def count_messages(runner: Runner, sandbox_id: str, conversation: str) -> int:
    """The number of the user's messages that the agent server has of a conversation, including the first."""
    command = COUNT_MESSAGES.format(folder=f"{FOLDER}/{conversation}")
    return int(runner.engine.docker("exec", sandbox_name(sandbox_id), "sh", "-c", command))


def _assert_rejected_once(runner: Runner, sandbox_id: str) -> None:
    """Assert that a retry returns the same failed start, and that no conversation is left."""
    start_conversation(runner, sandbox_id)
    eventually(runner.is_at_rest)
    assert stages(runner) == [Stage.ERROR]
    with runner.service.database.reading() as session:
        assert session.exec(select(Conversation.id)).all() == []


# --- cancel -----------------------------------------------------------------------------------------------------------


def _cancel(runner: Runner, _sandbox_id: str) -> None:
    """Cancel the start in progress."""
    with runner.service.database.reading() as session:
        task_id = session.exec(select(StartTask.id)).one()
    call = runner.client.history.invoke(Verb.CANCEL, task_id)
    response = send(runner, "POST", f"{CONVERSATIONS}/start-tasks/{task_id}/cancel")
    if response is not None:
        assert response.status_code in (200, 409), response.text
        outcome = Outcome.OK if response.is_success else Outcome.FAILED
        runner.client.history.complete(call, outcome, Verb.CANCEL, task_id)


def _assert_cancelled(runner: Runner, sandbox_id: str) -> None:
    """Assert that the cancelled start left no conversation, or succeeded if the service never got the request."""
    with runner.service.database.reading() as session:
        [task] = session.exec(select(StartTask)).all()
        listed = session.exec(select(Conversation.listed)).all()
    there = runner.engine.docker("exec", sandbox_name(sandbox_id), "sh", "-c", f"ls {FOLDER} || true")
    if task.cancelled_at is None:
        assert (task.stage, listed) == (Stage.READY, [True])
    else:
        assert (task.stage, task.reason, listed) == (Stage.ERROR, Reason.CANCELLED, [])
        assert task.conversation_id not in there


# --- delete -----------------------------------------------------------------------------------------------------------


def delete_conversation(runner: Runner, _sandbox_id: str) -> None:
    """Delete the conversation of `start_conversation`, unless it is already deleted."""
    with runner.service.database.reading() as session:
        tasks = [task for task in session.exec(select(StartTask)).all() if task.request["title"]]
    if not tasks:
        return
    [task] = tasks
    call = runner.client.history.invoke(Verb.FORGET, task.id)
    response = send(runner, "DELETE", f"{CONVERSATIONS}/{task.conversation_id}")
    if response is not None:
        assert response.status_code == 200, response.text
        runner.client.history.complete(call, Outcome.OK, Verb.FORGET, task.id)


def _delete_last_conversation(runner: Runner, sandbox_id: str) -> None:
    """Delete the conversation, and wait until the worker has finished or a process has died."""
    delete_conversation(runner, sandbox_id)
    eventually(lambda: any(map(runner.is_dead, PROCESSES)) or not _awaits_worker(runner))


def _awaits_worker(runner: Runner) -> bool:
    """Whether a conversation is due or leased."""
    wanted = or_(col(Conversation.due_at).is_not(None), col(Conversation.lease_until).is_not(None))
    with runner.service.database.reading() as session:
        return session.exec(select(Conversation.id).where(wanted)).first() is not None


def _assert_deleted(runner: Runner, sandbox_id: str) -> None:
    """Assert that a second delete succeeds, and that the API and the sandbox still have the other conversation."""
    delete_conversation(runner, sandbox_id)
    eventually(runner.is_at_rest)
    with runner.service.database.reading() as session:
        [listed] = session.exec(select(Conversation.id).where(col(Conversation.listed))).all()
        [deleted] = session.exec(select(Conversation.id).where(~col(Conversation.listed))).all()
    response = send(runner, "DELETE", f"{CONVERSATIONS}/{deleted}")
    assert response is not None
    assert response.status_code == 200
    eventually(runner.is_at_rest)
    there = runner.engine.docker("exec", sandbox_name(sandbox_id), "ls", FOLDER)
    assert there.split() == [listed]


# ----------------------------------------------------------------------------------------------------------------------

CONVERSE = frozenset({"POST /app-conversations", "conversations.start"})
SWEPT = frozenset({"sweep"})
REMOVAL = frozenset({"sandboxes.delete"})


def _start_in(
    prepare: Prepare,
    *,
    verify: Act,
    act: Act = start_conversation,
    writes: frozenset[str] = frozenset(),
    releases: frozenset[str] = frozenset(),
) -> Operation:
    """The start of a conversation in an existing sandbox."""
    return Operation(owns=CONVERSE, prepare=prepare, act=act, verify=verify, writes=writes, releases=releases)


OPERATIONS: Mapping[str, Operation] = {
    # The tiny image's agent server has no conversations by default and responds with 404.
    "refused-conversation": Operation(owns=CONVERSE, act=_start_in_new_sandbox),
    "conversation": _start_in(accepting_conversations, verify=_assert_started_once),
    "conversation-with-a-lost-message": _start_in(
        losing_first_messages,
        verify=_assert_started_once,
        writes=frozenset({"agent_server.start_the_conversation", "agent_server.take_a_message"}),
        releases=SWEPT,
    ),
    "conversation-without-a-title": _start_in(
        accepting_conversations,
        act=_start_untitled,
        verify=_assert_untitled_started_once,
        writes=frozenset({"agent_server.keep_a_profile"}),
    ),
    "refused-conversation-in-a-sandbox": _start_in(
        rejecting_conversations,
        verify=_assert_rejected_once,
        writes=frozenset({"agent_server.start_the_conversation", "agent_server.delete_the_conversation"}),
        releases=SWEPT,
    ),
    "cancel": Operation(
        owns=frozenset({"POST /app-conversations/start-tasks/{task_id}/cancel", "conversations.cancel"}),
        prepare=with_held_start,
        act=_cancel,
        verify=_assert_cancelled,
        holds=ROUTINES | {"conversations.start"},
    ),
    "delete-conversation": Operation(
        owns=frozenset({END, "conversations.delete"}),
        prepare=with_two_conversations,
        act=delete_conversation,
        verify=_assert_deleted,
    ),
    "delete-last-conversation": Operation(
        owns=frozenset({END, "conversations.delete", "sandboxes.delete"}),
        prepare=with_last_conversation,
        act=_delete_last_conversation,
        # Otherwise the deletion of the sandbox may or may not make the conversation due again.
        holds=ROUTINES | REMOVAL,
        releases=REMOVAL,
    ),
    "resume-with-a-deleted-conversation": Operation(
        owns=frozenset({"sandboxes.resume", "conversations.refresh"}),
        prepare=with_deleted_conversation,
        act=sandbox.resume,
        verify=_assert_deleted,
    ),
    "delete-during-a-conversation": Operation(
        owns=sandbox.DELETE,
        prepare=with_conversation,
        act=sandbox.delete,
        writes=frozenset({"agent_server.interrupt_the_conversation"}),
    ),
}
