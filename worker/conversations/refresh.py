"""Work on a conversation besides its webhooks: messages, title, silent model, budget, deletion."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import structlog

from shared.agent_server.errors import AgentServerRefused, ResponseTooLarge
from shared.changes import recorder as change_recorder
from shared.clock import now
from shared.conversations import pending_messages
from shared.conversations import queries as conversation_queries
from shared.conversations.webhook_reports import MAX_TITLE_LENGTH
from shared.db.database import UNAVAILABLE
from shared.json_documents import clean_text
from shared.leasing import leases, waiters
from shared.models import Conversation, Sandbox
from shared.queue.jobs import RefreshConversation
from shared.sql import clock_steps
from shared.states import Desired, Status
from worker.agent_server.client import AgentServer
from worker.agent_server.transport import cancellable, timeout
from worker.context import LaneJob, WorkerContext
from worker.conversations.agent_status import suppress_failure
from worker.conversations.deletion import delete_from_agent_server
from worker.conversations.ended_runs import check_run
from worker.conversations.message_delivery import deliver
from worker.conversations.model_silence import check_silence
from worker.conversations.refused_events import fetch_state
from worker.lease_runner import Retry, run_leased, taking_slot

log = structlog.get_logger()

# Seconds between two polls for the title. A separate model call generates it: it may come late, or never.
TITLE_SECONDS = 2.0
# Seconds between two polls of a server that fails for the status of a run from before its last boot.
STATUS_SECONDS = 15.0
# Total timeout of a run's requests to an agent server, because a deletion of the conversation waits for the run.
RUN_SECONDS = 60.0
# The max wait for a title since the conversation's last change: a change starts the wait again.
MAX_TITLE_WAIT = timedelta(seconds=60)


def refresh_conversation(context: WorkerContext, conversation_id: str) -> None:
    """Refresh one conversation, if its sandbox runs."""
    run_leased(context, Conversation, conversation_id, _refresh_leased, _give_up)


class _Superseded(Exception):
    """During a request, the conversation was deleted, or the sandbox that it awaits no longer runs.

    Another run does the rest: the deletion has enqueued it, or the write of the status RUNNING will.
    """


def _refresh_leased(context: WorkerContext, conversation: Conversation) -> None:
    job = RefreshConversation(conversation.id, context.settings.node)
    with (
        taking_slot(context, context.agents, LaneJob(job, conversation.sandbox_id, conversation.owner_id)),
        timeout(RUN_SECONDS),
        cancellable(partial(_require_current, context, conversation)),
        suppress(_Superseded),
    ):
        _refresh(context, conversation)


def _require_current(context: WorkerContext, conversation: Conversation) -> None:
    """Mark progress during a request, and check whether its result is still needed, and whether the server can respond.

    Raises:
        LeaseLost: another worker owns the conversation.
        _Superseded: the conversation is deleted, and its agent server must get the delete and no other request; or the
            conversation awaits its sandbox, which does not run, so the server would not respond.
    """
    context.renewer.mark_progress(Conversation, conversation)
    try:
        row = conversation.id, conversation.fence
        deleted_at, awaits_sandbox = leases.read(context.database, Conversation, *row, ("deleted_at", "awaits_sandbox"))
        with context.database.reading() as session:
            sandbox = session.get(Sandbox, conversation.sandbox_id)
    except UNAVAILABLE:
        return  # the store does not respond: the run continues
    # Only a conversation that awaits its sandbox gets another run when that runs again.
    is_frozen = awaits_sandbox and sandbox is not None and sandbox.status != Status.RUNNING
    if deleted_at != conversation.deleted_at or is_frozen:
        raise _Superseded


def _refresh(context: WorkerContext, conversation: Conversation) -> None:
    if conversation.deleted_at is not None:
        delete_from_agent_server(context, conversation)
        return
    sandbox = waiters.read_sandbox(context.database, conversation.sandbox_id)
    if sandbox is None or sandbox.desired == Desired.DELETED:
        _delete_messages(context, conversation)
        return
    if sandbox.status != Status.RUNNING:
        return
    server = context.agent_server(sandbox, conversation_id=conversation.id)
    if server is None:
        return
    checked = check_run(context, conversation, sandbox, server)
    current = fetch_state(context, checked or conversation, server)
    _refresh_running(context, current, server, is_known=checked is not None)


def _refresh_running(
    context: WorkerContext, conversation: Conversation, server: AgentServer, *, is_known: bool
) -> None:
    """Check silence and budget first: a delivery that fails is retried without a max.

    Args:
        is_known: whether the agent's status is known. If not, its model's silence isn't either.
    """
    seconds = check_silence(context, conversation) if is_known else STATUS_SECONDS
    _enforce_budget(server, conversation)
    if conversation.awaits_sandbox:
        deliver(context, conversation, server)
        _enforce_budget(server, conversation)  # the delivery has run the agent
    if not conversation.title_settled:
        _update_title(context, server, conversation)
    _reset_attempts(context, conversation)
    _requeue(seconds)


@contextmanager
def _tolerating_refusal(conversation: Conversation) -> Iterator[None]:
    """Skip a request that the agent server refuses, or whose response is too large.

    A retry would have the same result, and the next webhook enqueues one.
    """
    try:
        yield
    except AgentServerRefused as error:
        log.warning("not_refreshed", conversation=conversation.id, status=error.status)
    except ResponseTooLarge as error:
        log.warning("not_refreshed", conversation=conversation.id, error=str(error))


def _delete_messages(context: WorkerContext, conversation: Conversation) -> None:
    """Delete the pending messages: the sandbox won't run again."""
    if conversation.awaits_sandbox:
        with context.database.transaction() as session:
            pending_messages.delete_all(session, conversation.id)
            pending_messages.finish_delivery(session, conversation)


def _reset_attempts(context: WorkerContext, conversation: Conversation) -> None:
    """Reset the number of failed attempts after a successful run: attempts do not count towards a later failure."""
    if conversation.attempt > 0:
        with context.database.transaction() as session:
            leases.write(session, Conversation, conversation.id, conversation.fence, attempt=0)


def _give_up(context: WorkerContext, conversation: Conversation) -> None:
    """Check the model's silence only: all other work failed because of a bug in this service.

    Raises:
        Retry: the model's timeout is not over.
    """
    log.warning("not_refreshed", conversation=conversation.id)
    _requeue(check_silence(context, conversation))


def _requeue(seconds: float | None) -> None:
    if seconds is not None:
        raise Retry("the agent is checked again", seconds=seconds, counts=False)


def _enforce_budget(server: AgentServer, conversation: Conversation) -> None:
    spent = (conversation.metrics or {}).get("accumulated_cost") or 0
    over = conversation.max_budget is not None and spent >= conversation.max_budget
    if over and conversation.execution_status == "running":
        log.info("budget_spent", conversation=conversation.id, spent=spent, budget=conversation.max_budget)
        with _tolerating_refusal(conversation):
            server.interrupt(conversation.id)


def _update_title(context: WorkerContext, server: AgentServer, conversation: Conversation) -> None:
    known, may_wait = None, clock_steps.is_recent(conversation.updated_at, MAX_TITLE_WAIT)
    with _tolerating_refusal(conversation), suppress_failure(conversation, may_wait=may_wait):
        known = server.get_conversation(conversation.id)
    title = clean_text(known.get("title"), MAX_TITLE_LENGTH) if known else None
    if title:
        _write_title(context, conversation, title)
    elif known is not None and may_wait:
        raise Retry("no title yet", seconds=TITLE_SECONDS, counts=False)


def _write_title(context: WorkerContext, conversation: Conversation, title: str) -> None:
    with context.database.transaction() as session:
        row = conversation_queries.find(session, conversation.id, lock=True)
        if row is None or row.title_settled or row.deleted_at is not None:
            return  # a user has named it during the request: that title is newer
        values: dict[str, Any] = {"title": title, "title_settled": True, "updated_at": now(), "attempt": 0}
        leases.write(session, Conversation, conversation.id, conversation.fence, **values)
        change_recorder.record_change(session, row)
