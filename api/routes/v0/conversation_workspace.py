"""V0's operations for a conversation's sandbox, through V1's in `conversation_workspace`."""

from itertools import chain
from typing import Any

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from api.errors.openapi import error_responses
from api.request.authentication import Caller, CurrentCaller
from api.request.context import Context, ContextDep, JobQueue, JobQueueDep
from api.request.held_streams import HELD_DOWNLOAD
from api.routes.v0.conversation_starts import find_unfinished, require_started
from api.routes.v0.legacy_route import LegacyRoute, replaced_by
from api.routes.v1 import conversation_workspace as v1
from api.schemas.v0.conversation_workspace import CHANGES, FileContent, PlainMessage, RuntimeIds, VscodeUrl, WebHosts
from api.schemas.v1.fields import Success
from api.schemas.v1.pending_messages import UserMessage
from api.schemas.v1.sandboxes import ExposedUrl, serialize_urls, wire_status
from api.schemas.v1.start_tasks import TextContent
from shared.conversations import pending_messages
from shared.ids import parse_id
from shared.json_documents import write_text
from shared.states import Status

router = APIRouter(prefix="/conversations/{conversation_id}", tags=["conversations (V0)"], route_class=LegacyRoute)

PATH = "/api/v1/app-conversations/{conversation_id}"
SANDBOXES = replaced_by("/api/v1/sandboxes")
# The end of the error message while the conversation is being started.
FILES = "its files can be read"


@router.get("/config", responses=error_responses(409), **replaced_by(PATH))
def get_ids(context: ContextDep, caller: CurrentCaller, conversation_id: str) -> RuntimeIds:
    """The ids of the conversation and of its sandbox."""
    task = find_unfinished(context, caller, conversation_id)
    if task is not None and task.sandbox_id is not None:
        return RuntimeIds(runtime_id=task.sandbox_id, session_id=task.conversation_id)
    conversation, sandbox = v1.load_shown(context, caller, conversation_id)
    return RuntimeIds(runtime_id=sandbox.id, session_id=conversation.id)


@router.get("/vscode-url", responses=error_responses(409), **SANDBOXES)
def get_vscode_url(context: ContextDep, caller: CurrentCaller, conversation_id: str) -> VscodeUrl:
    """The URL of the sandbox's editor; null unless the sandbox runs and exposes one."""
    urls = _exposed(context, caller, conversation_id)
    return VscodeUrl(vscode_url=next((one.url for one in urls if one.name == "VSCODE"), None))


@router.get("/web-hosts", responses=error_responses(409), **SANDBOXES)
def get_web_hosts(context: ContextDep, caller: CurrentCaller, conversation_id: str) -> WebHosts:
    """The URLs of the web servers that the agent runs, with their ports; none unless the sandbox runs."""
    urls = _exposed(context, caller, conversation_id)
    return WebHosts(hosts={one.url: one.port for one in urls if one.name.startswith("WORKER")})


@router.post("/message", responses=error_responses(409, 410, 429, 502), **replaced_by(f"{PATH}/send-message"))
async def send_message(
    context: ContextDep, caller: CurrentCaller, queue: JobQueueDep, conversation_id: str, message: PlainMessage
) -> Success:
    """Send a message to the agent, and let it run. During the start, the message is queued."""
    said = UserMessage(content=[TextContent(text=message.message)])
    if await context.run_in_turn(find_unfinished, context, caller, conversation_id) is not None:
        await context.run_in_turn(_queue, context, caller, queue, conversation_id, said)
        return Success()
    return Success(success=(await v1.send_message(context, caller, queue, conversation_id, said)).success)


@router.get(
    "/git/changes", response_model=list[dict[str, Any]], responses=v1.ERRORS, **replaced_by(f"{PATH}/git/changes")
)
async def get_changes(context: ContextDep, caller: CurrentCaller, conversation_id: str) -> Any:
    """The changes in the project's folder, with git's status letters."""
    await context.run_in_turn(require_started, context, caller, conversation_id, FILES)
    found = await v1.request_git(context, caller, conversation_id, "changes", ".")
    return await v1.pass_on(context, await context.run_in_turn(_in_letters, found))


@router.get("/git/diff", responses=v1.ERRORS, **replaced_by(f"{PATH}/git/diff"))
async def get_diff(context: ContextDep, caller: CurrentCaller, conversation_id: str, path: v1.FilePath) -> Any:
    """A file before and after its changes."""
    await context.run_in_turn(require_started, context, caller, conversation_id, FILES)
    return await v1.pass_on(context, await v1.request_git(context, caller, conversation_id, "diff", path))


@router.get(
    "/select-file",
    response_model=FileContent,
    responses=v1.ERRORS,
    dependencies=[HELD_DOWNLOAD],
    **replaced_by(f"{PATH}/file"),
)
async def get_file(
    context: ContextDep, caller: CurrentCaller, conversation_id: str, file: v1.FilePath
) -> StreamingResponse:
    """A text file."""
    await context.run_in_turn(require_started, context, caller, conversation_id, FILES)
    text = await v1.read_file(context, caller, conversation_id, file)
    return StreamingResponse(chain([b'{"code":'], write_text(text), [b"}"]), media_type="application/json")


def _queue(context: Context, caller: Caller, queue: JobQueue, conversation_id: str, message: UserMessage) -> None:
    content = message.model_dump(mode="json")["content"]
    with context.database.transaction() as session:
        queued = pending_messages.add(session, parse_id(conversation_id), caller.id, content, due_at=queue.due_at)
    if queued.job is not None:
        queue.enqueue(queued.job)


def _exposed(context: Context, caller: Caller, conversation_id: str) -> list[ExposedUrl]:
    if find_unfinished(context, caller, conversation_id) is not None:
        return []
    _, sandbox = v1.load_shown(context, caller, conversation_id)
    return serialize_urls(sandbox, caller.sandbox_urls) if wire_status(sandbox) == Status.RUNNING else []


def _in_letters(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one | {"status": CHANGES.get(str(one.get("status")), "M")} for one in found]
