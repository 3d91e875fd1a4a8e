"""What no webhook does for a conversation: its messages, its title, its model's silence, its budget, its end."""

from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import structlog

from shared import changes, leases
from shared.clock import now
from shared.database import UNAVAILABLE
from shared.documents import clean_text
from shared.errors import LeaseLost
from shared.jobs import RefreshConversation
from shared.models import Conversation, Sandbox
from shared.states import Desired, Status
from shared.store import conversations, pending_messages
from worker.agent_lane import AgentWork
from worker.agent_server import AgentServer
from worker.agent_server_errors import AgentServerRefused
from worker.deliveries import deliver
from worker.forgetting import forget
from worker.model_silence import look_for_silence
from worker.parts import Parts
from worker.patience import looking, timeout
from worker.turns import TryAgain, take_turns, taking_place

log = structlog.get_logger()

# The title is made by a model call beside the agent's own: it may come late, or never.
TITLE_SECONDS = 2.0
# For all that a turn asks of an agent server: the deletion of its conversation waits for the turn.
TURN_SECONDS = 60.0
# Since the conversation changed last: a change has it asked for anew.
TITLE_PATIENCE = timedelta(seconds=60)
LONGEST_TITLE = 500


def refresh_conversation(parts: Parts, conversation_id: str) -> None:
    """Look after one conversation, if its sandbox runs."""
    take_turns(parts, Conversation, conversation_id, _refresh_in_turn, _leave_as_it_is)


class _Deleted(Exception):
    """The conversation was deleted while its agent server was asked."""


def _refresh_in_turn(parts: Parts, conversation: Conversation) -> None:
    job = RefreshConversation(conversation.id, parts.settings.node)
    with (
        taking_place(parts, AgentWork(job, conversation.sandbox_id, conversation.owner_id)),
        timeout(TURN_SECONDS),
        looking(partial(_look, parts, conversation)),
        suppress(_Deleted),  # that asks for the next turn
    ):
        _refresh(parts, conversation)


def _look(parts: Parts, conversation: Conversation) -> None:
    """Show, in the midst of a request, that this turn makes progress, and end it if it is for nothing.

    Raises:
        LeaseLost: another worker owns the conversation.
        _Deleted: its agent server is to forget it, not to be asked for anything else.
    """
    parts.keeper.mark_progress(Conversation, conversation)
    try:
        with parts.database.reading() as session:
            newer = conversations.find(session, conversation.id)
    except UNAVAILABLE:
        return  # no news is no reason
    if newer is None or newer.fence != conversation.fence:
        raise LeaseLost(f"conversation {conversation.id}: fence {conversation.fence} is no longer ours")
    if newer.deleted_at != conversation.deleted_at:
        raise _Deleted


def _refresh(parts: Parts, conversation: Conversation) -> None:
    if conversation.deleted_at is not None:
        forget(parts, conversation)
        return
    with parts.database.reading() as session:
        sandbox = session.get(Sandbox, conversation.sandbox_id)
    if sandbox is None or sandbox.desired == Desired.DELETED:
        _settle(parts, conversation)
        return
    server = parts.agent_server(sandbox) if sandbox.status == Status.RUNNING else None
    if server is None:
        return
    if conversation.awaits_sandbox:
        deliver(parts, conversation, server)
    seconds = look_for_silence(parts, conversation)
    try:
        _hold_to_budget(server, conversation)
        if not conversation.title_settled:
            _settle_title(parts, server, conversation)
    except AgentServerRefused as error:  # it would refuse again; the next webhook asks once more
        log.warning("not_refreshed", conversation=conversation.id, status=error.status)
    _look_again(seconds)


def _settle(parts: Parts, conversation: Conversation) -> None:
    """Nothing will be done in its sandbox any more."""
    if conversation.awaits_sandbox:
        with parts.database.transaction() as session:
            pending_messages.discard(session, conversation.id)
            pending_messages.rest(session, conversation)


def _leave_as_it_is(parts: Parts, conversation: Conversation) -> None:
    """A defect of ours is in the way, but not of seeing that its model is silent.

    Raises:
        TryAgain: its model may answer yet.
    """
    log.warning("not_refreshed", conversation=conversation.id)
    _look_again(look_for_silence(parts, conversation))


def _look_again(seconds: float | None) -> None:
    if seconds is not None:
        raise TryAgain("its model may answer yet", seconds=seconds, counts=False)


def _hold_to_budget(server: AgentServer, conversation: Conversation) -> None:
    spent = (conversation.metrics or {}).get("accumulated_cost") or 0
    over = conversation.max_budget is not None and spent >= conversation.max_budget
    if over and conversation.execution_status == "running":
        log.info("budget_spent", conversation=conversation.id, spent=spent, budget=conversation.max_budget)
        server.interrupt(conversation.id)


def _settle_title(parts: Parts, server: AgentServer, conversation: Conversation) -> None:
    known = server.get_conversation(conversation.id)
    title = clean_text(known.get("title"), LONGEST_TITLE) if known else None
    if title:
        _write_title(parts, conversation, title)
    elif known is not None and now() < conversation.updated_at + TITLE_PATIENCE:
        raise TryAgain("no title yet", seconds=TITLE_SECONDS, counts=False)


def _write_title(parts: Parts, conversation: Conversation, title: str) -> None:
    with parts.database.transaction() as session:
        row = conversations.find(session, conversation.id, lock=True)
        if row is None or row.title_settled or row.deleted_at is not None:
            return  # somebody named it while we asked: theirs is newer
        values: dict[str, Any] = {"title": title, "title_settled": True, "updated_at": now(), "attempt": 0}
        leases.write(session, Conversation, conversation.id, conversation.fence, **values)
        changes.note(session, row)
