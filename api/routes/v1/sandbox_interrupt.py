"""Interrupt the agents of a sandbox: the web UI's "stop" means them, not the sandbox (decision 32)."""

import asyncio
from uuid import UUID

import structlog

from api.agent_server.responses import read_response
from api.request.authentication import Caller
from api.request.context import Context
from api.schemas.v1.sandboxes import wire_status
from shared.agent_server import paths
from shared.agent_server.errors import ResponseTooLarge
from shared.agent_server.limits import MAX_ITEMS
from shared.agent_server.responses import AgentServerResponse, RunningPage
from shared.conversations import queries as conversation_queries
from shared.errors import WorkspaceError
from shared.models import Sandbox
from shared.sandboxes import queries as sandbox_queries
from shared.states import Desired, Status

log = structlog.get_logger()

# If the agent server takes longer, the sandbox is paused with all that runs in it.
SECONDS = 10.0
RUNNING = {"status": "running", "limit": MAX_ITEMS}


async def interrupt_runs(context: Context, caller: Caller, sandbox_id: str) -> bool:
    """Interrupt the running conversations of a sandbox.

    Returns:
        Whether any was interrupted.

    Raises:
        NotFound: the caller has no such sandbox.
    """
    sandbox = await context.run_in_turn(_load, context, caller, sandbox_id)
    if wire_status(sandbox) != Status.RUNNING or sandbox.desired != Desired.RUNNING:
        return False
    try:
        async with asyncio.timeout(SECONDS):
            return await _interrupt(context, sandbox)
    except (WorkspaceError, TimeoutError) as error:
        log.info("not_interrupted", sandbox=sandbox.id, error=type(error).__name__)
        return False


async def _interrupt(context: Context, sandbox: Sandbox) -> bool:
    requests = [
        context.agent_servers.request(sandbox, "POST", paths.conversation(UUID(conversation_id), "/interrupt"))
        for conversation_id in await _find_running(context, sandbox)
    ]
    # For a run that has already ended, the agent server responds with 4xx, which is no failure.
    responses = await asyncio.gather(*requests, return_exceptions=True)
    return any(isinstance(response, AgentServerResponse) and response.is_success for response in responses)


async def _find_running(context: Context, sandbox: Sandbox) -> list[str]:
    """The ids of the conversations with a running agent: the stored ones if the server's list is too large.

    A server lists the whole documents of its conversations, which grow with each call of a model.
    """
    try:
        async with context.agent_servers.exchange(sandbox, "GET", paths.SEARCH, params=RUNNING) as found:
            running, _ = await read_response(found, RunningPage)
    except ResponseTooLarge:
        return await context.run_in_turn(_list_stored, context, sandbox)
    return [conversation.id for conversation in running.items]


def _list_stored(context: Context, sandbox: Sandbox) -> list[str]:
    with context.database.reading() as session:
        return conversation_queries.list_running(session, sandbox.id)


def _load(context: Context, caller: Caller, sandbox_id: str) -> Sandbox:
    with context.database.reading() as session:
        return sandbox_queries.get(session, sandbox_id, caller.id)
