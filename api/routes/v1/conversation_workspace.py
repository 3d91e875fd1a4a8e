"""A conversation's messages, files and git changes, read from its agent server while its sandbox runs."""

import shlex
from datetime import datetime
from pathlib import PurePosixPath
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query
from fastapi.responses import Response, StreamingResponse

from api.agent_server.responses import raise_client_error, read_response
from api.errors.openapi import error_responses
from api.request.authentication import Caller, CurrentCaller, UserRoute
from api.request.context import Context, ContextDep, JobQueue, JobQueueDep
from api.request.held_streams import HELD_DOWNLOAD
from api.schemas.v1.pending_messages import MessageSent, UserMessage
from api.schemas.v1.sandboxes import wire_status
from shared.agent_server import paths
from shared.agent_server.errors import AgentServerUnreachable, IncompleteResponse
from shared.agent_server.responses import AgentServerResponse, CommandOutcome, CommandResult, GitChanges, GitDiff
from shared.clock import now
from shared.conversations import events, pending_messages
from shared.conversations import queries as conversation_queries
from shared.conversations.webhook_reports import has_running_tool
from shared.errors import Gone, Invalid, NotFound, Unavailable
from shared.ids import parse_id
from shared.json_documents import write_document, write_text
from shared.models import Conversation, Sandbox
from shared.states import Status

# Errors of requests to the agent server.
ERRORS = error_responses(409, 413, 429, 502)

router = APIRouter(prefix="/app-conversations/{conversation_id}", tags=["conversations"], route_class=UserRoute)

# An agent server's status if it has stored a message, but runs too many agents to run this one too.
BUSY = 429
WAITS = "the agent is busy, and gets the message as soon as its tool, or another agent of its sandbox, has ended"
# Folders that the file list leaves out.
UNLISTED = (".git", "node_modules", ".venv", "__pycache__", ".cache", ".mypy_cache", ".pytest_cache", ".ruff_cache")
MAX_FILES = 2000
COMMAND_SECONDS = 20
# The exit code of a command that timed out, or that the agent server could not start.
UNFINISHED = -1
# The timeout of a command that only explains an error.
CHECK_SECONDS = 5.0
GIT: dict[str, tuple[str, type[GitChanges | GitDiff]]] = {
    "changes": (paths.CHANGES, GitChanges),
    "diff": (paths.DIFF, GitDiff),
}

FilePath = Annotated[
    str, Query(min_length=1, max_length=4096, description="An absolute path, or one below the project's folder")
]
Ref = Annotated[str | None, Query(max_length=256)]


@router.post("/send-message", responses=error_responses(409, 410, 429, 502))
async def send_message(
    context: ContextDep, caller: CurrentCaller, queue: JobQueueDep, conversation_id: str, message: UserMessage
) -> MessageSent:
    """Send a message to the agent, and let it run. A paused sandbox is not resumed.

    An agent whose tool runs for more than 25 s gets the message when the tool has ended. If too many agents of the
    sandbox run, it runs when another one has ended.
    """
    conversation, sandbox = await context.run_in_turn(load_shown, context, caller, conversation_id)
    status = wire_status(sandbox)
    if status == "MISSING":
        raise Gone(f"the sandbox of conversation {conversation.id} is deleted")
    if status == Status.ERROR:
        raise Unavailable(f"the sandbox is in ERROR: POST /api/v1/sandboxes/{sandbox.id}/resume tries again")
    if message.run and status == Status.RUNNING:
        await context.run_in_turn(_check_room, context, conversation.id)
    sent_at = now()
    response = await _post_message(context, conversation, sandbox, message)
    if response is None or (message.run and response.status == BUSY):
        unconfirmed = sent_at if response is None else None
        await context.run_in_turn(_follow_up, context, queue, conversation, message, unconfirmed)
        return MessageSent(success=True, sandbox_status=status, message=WAITS)
    raise_client_error(response)
    response.require_success()
    return MessageSent(success=True, sandbox_status=status)


@router.get("/git/changes", responses=ERRORS)
async def get_changes(
    context: ContextDep, caller: CurrentCaller, conversation_id: str, path: FilePath, ref: Ref = None
) -> Any:
    """The changes below a folder, as the agent server reports them."""
    return await pass_on(context, await request_git(context, caller, conversation_id, "changes", path, ref))


@router.get("/git/diff", responses=ERRORS)
async def get_diff(
    context: ContextDep, caller: CurrentCaller, conversation_id: str, path: FilePath, ref: Ref = None
) -> Any:
    """A file before and after its changes, as the agent server reports it."""
    return await pass_on(context, await request_git(context, caller, conversation_id, "diff", path, ref))


@router.get("/file", response_model=str, responses=ERRORS, dependencies=[HELD_DOWNLOAD])
async def get_file(
    context: ContextDep, caller: CurrentCaller, conversation_id: str, file_path: FilePath | None = None
) -> StreamingResponse:
    """A text file of the sandbox; by default the plan."""
    text = await read_file(context, caller, conversation_id, file_path)
    return StreamingResponse(write_text(text), media_type="application/json")


@router.get("/files", responses=ERRORS)
async def list_files(
    context: ContextDep, caller: CurrentCaller, conversation_id: str, path: FilePath | None = None
) -> list[str]:
    """The files below a folder, as paths relative to it (Agent Workspace extension).

    The default folder is the project's. At most 2,000 files, without those of git, installed packages and caches.
    """
    conversation, sandbox = await context.run_in_turn(load_shown, context, caller, conversation_id)
    folder = absolute_path(conversation, path or ".")
    found = await _run(context, sandbox, _list_command(folder))
    if found.exit_code == UNFINISHED:
        raise AgentServerUnreachable(f"the agent server did not list the folder's files within {COMMAND_SECONDS} s")
    if found.exit_code != 0:
        raise NotFound("folder", folder, by="path")
    lines = found.stdout.split("\n", MAX_FILES)[:MAX_FILES]
    return sorted(line.removeprefix("./").removesuffix("\r") for line in lines if line)


async def read_file(context: Context, caller: Caller, conversation_id: str, file_path: str | None) -> str:
    """Read a text file of a conversation's sandbox. `file_path` None: the plan.

    Raises:
        Conflict: the sandbox does not run.
        Invalid: the file is not text, or the sandbox's user may not read it.
        NotFound: the caller has no such conversation, or the file does not exist.
        UpstreamRejected: the agent server refuses the path.
        AgentServerError: the agent server does not answer. ResponseTooLarge: the file is too large.
    """
    conversation, sandbox = await context.run_in_turn(load_shown, context, caller, conversation_id)
    path = absolute_path(conversation, file_path or paths.plan(conversation.git_provider))
    try:
        response = await context.agent_servers.request(sandbox, "GET", paths.DOWNLOAD, params={"path": path})
    except IncompleteResponse:
        # The agent server checks that the file exists, but begins its response before it opens the file.
        await _check_readable(context, sandbox, path)
        raise
    if response.status == 404:
        raise NotFound("file", path, by="path")
    raise_client_error(response)
    try:
        return response.require_success().decode()
    except UnicodeDecodeError:
        raise Invalid("the file is not a text file") from None


async def request_git(
    context: Context, caller: Caller, conversation_id: str, what: str, path: str, ref: str | None = None
) -> Any:
    """Read the changes or the diff of a path from a conversation's agent server.

    Raises:
        Conflict: the sandbox does not run.
        NotFound: the caller has no such conversation.
        UpstreamRejected: the agent server refuses the path or the reference.
        AgentServerError: the agent server does not answer, or not with JSON of the right shape.
    """
    conversation, sandbox = await context.run_in_turn(load_shown, context, caller, conversation_id)
    params = {"path": absolute_path(conversation, path)} | ({"ref": ref} if ref else {})
    git_path, shape = GIT[what]
    async with context.agent_servers.exchange(sandbox, "GET", git_path, params=params) as response:
        raise_client_error(response)
        return (await read_response(response, shape))[1]


async def pass_on(context: Context, document: Any) -> Response:
    """Return a response with a document, serialized in a thread: FastAPI would serialize it on the event loop."""
    body = await context.run_in_turn(write_document, document, ascii_only=False)
    return Response(body, media_type="application/json")


def load_shown(context: Context, caller: Caller, conversation_id: str) -> tuple[Conversation, Sandbox]:
    """The caller's conversation and its sandbox.

    Raises:
        Invalid: `conversation_id` is no valid id.
        NotFound: the caller has no such conversation.
    """
    with context.database.reading() as session:
        return conversation_queries.get_shown(session, parse_id(conversation_id), caller.id)


def absolute_path(conversation: Conversation, path: str) -> str:
    """The absolute path in the sandbox; a relative path is below the project's folder."""
    return str(PurePosixPath(conversation.working_dir or "/", path))


async def _post_message(
    context: Context, conversation: Conversation, sandbox: Sandbox, message: UserMessage
) -> AgentServerResponse | None:
    """Send a message to the agent server. None: it does not respond, but takes the message when a tool has ended."""
    path = paths.events(UUID(conversation.id))
    try:
        return await context.agent_servers.request(sandbox, "POST", path, json=message.model_dump(mode="json"))
    except AgentServerUnreachable:
        if message.run and await context.run_in_turn(_has_running_tool, context, conversation.id):
            return None
        raise


def _check_room(context: Context, conversation_id: str) -> None:
    """Refuse a message that could not be pending: no response of the agent server may store any number of them."""
    with context.database.reading() as session:
        pending_messages.count_pending(session, conversation_id)


def _has_running_tool(context: Context, conversation_id: str) -> bool:
    """Whether a tool runs, by the newest reports: the agent may have begun since the message was sent."""
    with context.database.reading() as session:
        conversation = conversation_queries.find(session, conversation_id)
        runs = conversation is not None and conversation.execution_status == "running"
        return runs and has_running_tool(events.newest(session, conversation_id))


def _follow_up(
    context: Context, queue: JobQueue, conversation: Conversation, message: UserMessage, sent_at: datetime | None
) -> None:
    """Have a worker check that the agent gets the message, and runs: a client must not send it a second time."""
    row, content = (conversation.id, conversation.owner_id), message.model_dump(mode="json")["content"]
    with context.database.transaction() as session:
        job = pending_messages.add_sent(session, *row, content, sent_at=sent_at, due_at=queue.due_at)
    if job is not None:
        queue.enqueue(job)


def _list_command(folder: str) -> str:
    unlisted = " -o ".join(f"-name {name}" for name in UNLISTED)
    found = rf"find . -type d \( {unlisted} \) -prune -o \( -type f -o -type l \) -print"
    return f"cd -- {shlex.quote(folder)} && {found} | head -n {MAX_FILES}"


async def _check_readable(context: Context, sandbox: Sandbox, path: str) -> None:
    outcome = await _run(context, sandbox, f"test -r {shlex.quote(path)}", seconds=CHECK_SECONDS)
    if outcome.exit_code == 1:
        raise Invalid("the sandbox's user may not read that file")


async def _run(context: Context, sandbox: Sandbox, command: str, *, seconds: float | None = None) -> CommandResult:
    """Run a command in the sandbox and return its result."""
    body = {"command": command, "timeout": COMMAND_SECONDS}
    async with context.agent_servers.exchange(sandbox, "POST", paths.COMMAND, json=body, seconds=seconds) as response:
        return (await read_response(response, CommandOutcome))[0].result
