"""Pending messages, which are delivered once."""

from collections.abc import Mapping
from uuid import UUID

from sqlmodel import select

from shared.clock import now
from shared.models import Conversation, PendingMessage
from shared.states import Status
from tests.drills.faults.operation import ROUTINES, Operation
from tests.drills.faults.operations import sandbox
from tests.drills.faults.operations.conversation import conversation_id, count_messages, with_conversation
from tests.drills.faults.runner import Runner
from tests.drills.faults.user_requests import HELLO, send
from tests.waiting import eventually

DELIVERY = frozenset({"conversations.deliver"})
REFRESH = frozenset({"conversations.refresh"})


def with_pending_messages(runner: Runner) -> str:
    """A frozen sandbox with a conversation and two pending messages."""
    sandbox_id = with_conversation(runner)
    runner.client.pause(sandbox_id)
    runner.await_status(sandbox_id, Status.PAUSED)
    _post_twice(runner, sandbox_id)
    runner.await_given(runner.is_at_rest)
    return sandbox_id


def with_unrecorded_delivery(runner: Runner) -> str:
    """A pending message that was delivered by a worker that died before it could record that."""
    sandbox_id = with_pending_messages(runner)
    runner.client.resume(sandbox_id)
    runner.await_given(lambda: runner.is_at_rest() and not _pending(runner))
    [_, before, *_] = _list_messages(runner, sandbox_id)
    runner.client.pause(sandbox_id)
    runner.await_status(sandbox_id, Status.PAUSED)
    with runner.service.database.transaction() as session:
        [row] = session.exec(select(Conversation)).all()
        row.awaits_sandbox = True
        session.add(PendingMessage(conversation_id=row.id, content=HELLO, attempted_at=now(), newest_before=before))
    return sandbox_id


def _post_twice(runner: Runner, _sandbox_id: str) -> None:
    """Post the same text to the conversation as two pending messages."""
    conversation = conversation_id(runner)
    for number in range(2):
        send(
            runner,
            "POST",
            f"/api/v1/conversations/{conversation}/pending-messages",
            key=f"{conversation}-{number}",
            json={"content": HELLO},
        )


def _assert_each_delivered_once(runner: Runner, sandbox_id: str) -> None:
    """Assert, after a retry with the same keys, that the agent server has each message once."""
    _post_twice(runner, sandbox_id)
    eventually(runner.is_at_rest)
    assert not _pending(runner)
    assert count_messages(runner, sandbox_id, conversation_id(runner)) == 3


def _list_messages(runner: Runner, sandbox_id: str) -> list[str]:
    """The ids of the user's messages at the agent server, newest first."""
    query = "kind=MessageEvent&source=user&sort_order=TIMESTAMP_DESC"
    path = f"/sandbox/{sandbox_id}/api/conversations/{UUID(conversation_id(runner))}/events/search?{query}"
    response = send(runner, "GET", path)
    assert response is not None
    return [event["id"] for event in response.json()["items"]]


def _pending(runner: Runner) -> bool:
    with runner.service.database.reading() as session:
        return session.exec(select(PendingMessage.id)).first() is not None


OPERATIONS: Mapping[str, Operation] = {
    "messages": Operation(
        owns=frozenset({"POST /conversations/{conversation_id}/pending-messages"}) | DELIVERY,
        prepare=with_conversation,
        act=_post_twice,
        verify=_assert_each_delivered_once,
        # Otherwise the first message may or may not be delivered before the second is posted.
        holds=ROUTINES | DELIVERY,
        releases=DELIVERY,
    ),
    "resume-with-pending-messages": Operation(
        owns=REFRESH, prepare=with_pending_messages, act=sandbox.resume, verify=_assert_each_delivered_once
    ),
    "resume-with-an-unrecorded-delivery": Operation(
        owns=REFRESH, prepare=with_unrecorded_delivery, act=sandbox.resume, verify=_assert_each_delivered_once
    ),
}
