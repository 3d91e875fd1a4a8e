"""What no webhook does for a conversation: its messages, its title, its model's silence, its budget, its end."""

from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import structlog

from shared.changes import recorder as change_recorder
from shared.clock import now
from shared.conversations import pending_messages
from shared.conversations import queries as conversation_queries
from shared.db.database import UNAVAILABLE
from shared.errors import LeaseLost
from shared.json_documents import clean_text
from shared.leasing import leases
from shared.models import Conversation, Sandbox
from shared.queue.jobs import RefreshConversation
from shared.states import Desired, Status
from worker.agent_server.cancellable_transport import looking, timeout
from worker.agent_server.client import AgentServer
from worker.agent_server.errors import AgentServerRefused
from worker.context import WorkerContext
from worker.conversations.deletion import delete_from_agent_server
from worker.conversations.message_delivery import deliver
from worker.conversations.model_silence import check_silence
from worker.lease_runner import Retry, run_leased, taking_place
from worker.leasing.agent_lane import AgentWork

log = structlog.get_logger()

# The title is made by a model call beside the agent's own: it may come late, or never.
TITLE_SECONDS = 2.0
# For all that a turn asks of an agent server: the deletion of its conversation waits for the turn.
TURN_SECONDS = 60.0
# Since the conversation changed last: a change has it asked for anew.
TITLE_PATIENCE = timedelta(seconds=60)
MAX_TITLE_LENGTH = 500


def refresh_conversation(context: WorkerContext, conversation_id: str) -> None:
    """Look after one conversation, if its sandbox runs."""
    run_leased(context, Conversation, conversation_id, _refresh_in_turn, _leave_as_it_is)


class _Deleted(Exception):
    """The conversation was deleted while its agent server was asked."""


def _refresh_in_turn(context: WorkerContext, conversation: Conversation) -> None:
    job = RefreshConversation(conversation.id, context.settings.node)
    with (
        taking_place(context, AgentWork(job, conversation.sandbox_id, conversation.owner_id)),
        timeout(TURN_SECONDS),
        looking(partial(_look, context, conversation)),
        suppress(_Deleted),  # that asks for the next turn
    ):
        _refresh(context, conversation)


def _look(context: WorkerContext, conversation: Conversation) -> None:
    """Show, in the midst of a request, that this turn makes progress, and end it if it is for nothing.

    Raises:
        LeaseLost: another worker owns the conversation.
        _Deleted: its agent server is to forget it, not to be asked for anything else.
    """
    context.renewer.mark_progress(Conversation, conversation)
    try:
        with context.database.reading() as session:
            newer = conversation_queries.find(session, conversation.id)
    except UNAVAILABLE:
        return  # no news is no reason
    if newer is None or newer.fence != conversation.fence:
        raise LeaseLost(f"conversation {conversation.id}: fence {conversation.fence} is no longer ours")
    if newer.deleted_at != conversation.deleted_at:
        raise _Deleted


def _refresh(context: WorkerContext, conversation: Conversation) -> None:
    if conversation.deleted_at is not None:
        delete_from_agent_server(context, conversation)
        return
    with context.database.reading() as session:
        sandbox = session.get(Sandbox, conversation.sandbox_id)
    if sandbox is None or sandbox.desired == Desired.DELETED:
        _settle(context, conversation)
        return
    server = context.agent_server(sandbox) if sandbox.status == Status.RUNNING else None
    if server is None:
        return
    if conversation.awaits_sandbox:
        deliver(context, conversation, server)
    seconds = check_silence(context, conversation)
    try:
        _hold_to_budget(server, conversation)
        if not conversation.title_settled:
            _settle_title(context, server, conversation)
    except AgentServerRefused as error:  # it would refuse again; the next webhook asks once more
        log.warning("not_refreshed", conversation=conversation.id, status=error.status)
    _look_again(seconds)


def _settle(context: WorkerContext, conversation: Conversation) -> None:
    """Nothing will be done in its sandbox any more."""
    if conversation.awaits_sandbox:
        with context.database.transaction() as session:
            pending_messages.discard(session, conversation.id)
            pending_messages.finish_delivery(session, conversation)


def _leave_as_it_is(context: WorkerContext, conversation: Conversation) -> None:
    """A defect of ours is in the way, but not of seeing that its model is silent.

    Raises:
        Retry: its model may answer yet.
    """
    log.warning("not_refreshed", conversation=conversation.id)
    _look_again(check_silence(context, conversation))


def _look_again(seconds: float | None) -> None:
    if seconds is not None:
        raise Retry("its model may answer yet", seconds=seconds, counts=False)


def _hold_to_budget(server: AgentServer, conversation: Conversation) -> None:
    spent = (conversation.metrics or {}).get("accumulated_cost") or 0
    over = conversation.max_budget is not None and spent >= conversation.max_budget
    if over and conversation.execution_status == "running":
        log.info("budget_spent", conversation=conversation.id, spent=spent, budget=conversation.max_budget)
        server.interrupt(conversation.id)


def _settle_title(context: WorkerContext, server: AgentServer, conversation: Conversation) -> None:
    known = server.get_conversation(conversation.id)
    title = clean_text(known.get("title"), MAX_TITLE_LENGTH) if known else None
    if title:
        _write_title(context, conversation, title)
    elif known is not None and now() < conversation.updated_at + TITLE_PATIENCE:
        raise Retry("no title yet", seconds=TITLE_SECONDS, counts=False)


def _write_title(context: WorkerContext, conversation: Conversation, title: str) -> None:
    with context.database.transaction() as session:
        row = conversation_queries.find(session, conversation.id, lock=True)
        if row is None or row.title_settled or row.deleted_at is not None:
            return  # somebody named it while we asked: theirs is newer
        values: dict[str, Any] = {"title": title, "title_settled": True, "updated_at": now(), "attempt": 0}
        leases.write(session, Conversation, conversation.id, conversation.fence, **values)
        change_recorder.record_change(session, row)
