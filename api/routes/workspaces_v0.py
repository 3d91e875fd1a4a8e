"""V0's operations for a conversation's sandbox; what they do is in `sandboxes` and `workspaces`."""

from itertools import chain
from typing import Any

from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from api.auth import Caller, Me
from api.context import Context, Here, Hurry, Wishes
from api.legacy import LegacyRoute, replaced_by
from api.refusals import refusals
from api.routes import sandboxes
from api.routes import workspaces as v1
from api.schemas.messages import UserMessage
from api.schemas.sandboxes import ExposedUrl
from api.schemas.start_tasks import TextContent
from api.schemas.wire import Success
from api.schemas.workspaces_v0 import CHANGES, FileContent, PlainMessage, RuntimeIds, VscodeUrl, WebHosts
from api.starts_v0 import find_unfinished, require_started
from api.traffic.errors import Unanswered
from shared.documents import write_text
from shared.ids import parse_id
from shared.store import pending_messages

router = APIRouter(prefix="/conversations/{conversation_id}", tags=["conversations (V0)"], route_class=LegacyRoute)

PATH = "/api/v1/app-conversations/{conversation_id}"
SANDBOXES = replaced_by("/api/v1/sandboxes")
# What waits for a conversation that is being started.
FILES = "its files can be read"


@router.get("/config", responses=refusals(409), **replaced_by(PATH))
def get_ids(here: Here, me: Me, conversation_id: str) -> RuntimeIds:
    """What the conversation and its sandbox are called."""
    task = find_unfinished(here, me, conversation_id)
    if task is not None and task.sandbox_id is not None:
        return RuntimeIds(runtime_id=task.sandbox_id, session_id=task.conversation_id)
    conversation, sandbox = v1.load_shown(here, me, conversation_id)
    return RuntimeIds(runtime_id=sandbox.id, session_id=conversation.id)


@router.get("/vscode-url", responses=refusals(409), **SANDBOXES)
def get_vscode_url(here: Here, me: Me, conversation_id: str) -> VscodeUrl:
    """Where the sandbox's editor is."""
    urls = _exposed(here, me, conversation_id)
    return VscodeUrl(vscode_url=next((one.url for one in urls if one.name == "VSCODE"), None))


@router.get("/web-hosts", responses=refusals(409), **SANDBOXES)
def get_web_hosts(here: Here, me: Me, conversation_id: str) -> WebHosts:
    """Where what the agent serves is found."""
    urls = _exposed(here, me, conversation_id)
    return WebHosts(hosts={one.url: one.port for one in urls if one.name.startswith("WORKER")})


@router.post("/message", responses=refusals(409, 410, 429, 502), **replaced_by(f"{PATH}/send-message"))
async def send_message(here: Here, me: Me, wishes: Hurry, conversation_id: str, message: PlainMessage) -> Success:
    """Say something to the agent, which goes on with it; if it is being started, as soon as it can hear it."""
    said = UserMessage(content=[TextContent(text=message.message)])
    if await run_in_threadpool(find_unfinished, here, me, conversation_id) is not None:
        await run_in_threadpool(_queue, here, me, wishes, conversation_id, said)
        return Success()
    return Success(success=(await v1.send_message(here, me, conversation_id, said)).success)


@router.get(
    "/git/changes", response_model=list[dict[str, Any]], responses=v1.ASKED, **replaced_by(f"{PATH}/git/changes")
)
async def get_changes(here: Here, me: Me, conversation_id: str) -> Any:
    """What has changed in the project's folder, in git's letters."""
    await run_in_threadpool(require_started, here, me, conversation_id, FILES)
    found = await v1.ask_git(here, me, conversation_id, "changes", ".")
    return await v1.pass_on(await run_in_threadpool(_in_letters, found))


@router.get("/git/diff", responses=v1.ASKED, **replaced_by(f"{PATH}/git/diff"))
async def get_diff(here: Here, me: Me, conversation_id: str, path: v1.FilePath) -> Any:
    """A file before and after."""
    await run_in_threadpool(require_started, here, me, conversation_id, FILES)
    return await v1.pass_on(await v1.ask_git(here, me, conversation_id, "diff", path))


@router.get("/select-file", response_model=FileContent, responses=v1.ASKED, **replaced_by(f"{PATH}/file"))
async def get_file(here: Here, me: Me, conversation_id: str, file: v1.FilePath) -> StreamingResponse:
    """A text file."""
    await run_in_threadpool(require_started, here, me, conversation_id, FILES)
    text = await v1.read_file(here, me, conversation_id, file)
    return StreamingResponse(chain([b'{"code":'], write_text(text), [b"}"]), media_type="application/json")


def _queue(here: Context, me: Caller, wishes: Wishes, conversation_id: str, message: UserMessage) -> None:
    content = message.model_dump(mode="json")["content"]
    with here.database.transaction() as session:
        queued = pending_messages.add(session, parse_id(conversation_id), me.id, content, due_at=wishes.due_at)
    if queued.job is not None:
        wishes.hurry(queued.job)


def _exposed(here: Context, me: Caller, conversation_id: str) -> list[ExposedUrl]:
    if find_unfinished(here, me, conversation_id) is not None:
        return []
    _, sandbox = v1.load_shown(here, me, conversation_id)
    return sandboxes.get_sandbox(here, me, sandbox.id).exposed_urls or []


def _in_letters(found: Any) -> list[dict[str, Any]]:
    if not isinstance(found, list):
        raise Unanswered("the agent server's answer is no list of changes")
    return [one | {"status": CHANGES.get(str(one.get("status")), "M")} for one in found if isinstance(one, dict)]
