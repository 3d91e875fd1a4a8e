"""What a conversation's agent is made of, asked of its agent server, and changed there."""

import json
from uuid import UUID

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from api.auth import ForUsers, Me
from api.context import Context, Here
from api.refusals import refusals
from api.routes.workspaces import load_shown
from api.schemas.agents import (
    HookList,
    SkillList,
    SwitchAcpModelRequest,
    SwitchProfileRequest,
    list_hooks,
    list_skills,
)
from api.schemas.sandboxes import wire_status
from api.schemas.wire import Success
from api.traffic.errors import Overdue
from shared.errors import Invalid
from shared.llm_profiles import Llm
from shared.models import Conversation
from shared.states import Status
from shared.store import conversations, llm_profiles, user_settings

router = APIRouter(prefix="/app-conversations/{conversation_id}", tags=["conversations"], route_class=ForUsers)


@router.get("/skills", responses=refusals(409, 413, 502))
async def get_skills(here: Here, me: Me, conversation_id: str) -> SkillList:
    """The skills that the project brings, without those that the caller's settings disable; none while it is paused."""
    conversation, sandbox = await run_in_threadpool(load_shown, here, me, conversation_id)
    if wire_status(sandbox) == Status.PAUSED:
        return SkillList(skills=[])
    wanted = {"load_public": False, "load_user": False, "load_org": False, "load_project": True}
    body = wanted | {"project_dir": conversation.working_dir}
    answer = await here.agent_servers.ask(sandbox, "POST", "/api/skills", json=body)
    found = await run_in_threadpool(list_skills, await answer.read_json())
    disabled = await run_in_threadpool(_read_disabled, here, me.id)
    return SkillList(skills=[skill for skill in found.skills if skill.name not in disabled])


@router.get("/hooks", responses=refusals(409, 413, 502))
async def get_hooks(here: Here, me: Me, conversation_id: str) -> HookList:
    """What the project has run at the agent's doings; nothing while the sandbox is paused."""
    conversation, sandbox = await run_in_threadpool(load_shown, here, me, conversation_id)
    if wire_status(sandbox) == Status.PAUSED:
        return HookList(hooks=[])
    body = {"project_dir": conversation.working_dir}
    answer = await here.agent_servers.ask(sandbox, "POST", "/api/hooks", json=body)
    return await run_in_threadpool(list_hooks, await answer.read_json())


@router.post("/switch_profile", responses=refusals(409, 502))
async def switch_profile(here: Here, me: Me, conversation_id: str, request: SwitchProfileRequest) -> Success:
    """Let the agent go on with a saved LLM profile; the settings stay as they are."""
    conversation, sandbox = await run_in_threadpool(load_shown, here, me, conversation_id)
    llm = await run_in_threadpool(_read_profile, here, me.id, request.profile_name)
    path = f"/api/conversations/{UUID(conversation.id)}/switch_llm"
    (await here.agent_servers.ask(sandbox, "POST", path, json={"llm": llm})).need()
    await run_in_threadpool(_record, here, conversation, llm.get("model"))
    return Success()


@router.post("/switch_acp_model", responses=refusals(409, 502, 504))
async def switch_acp_model(here: Here, me: Me, conversation_id: str, request: SwitchAcpModelRequest) -> Success:
    """Let an agent of another maker (ACP) go on with another of its models; our own agent takes a profile instead."""
    conversation, sandbox = await run_in_threadpool(load_shown, here, me, conversation_id)
    path = f"/api/conversations/{UUID(conversation.id)}/switch_acp_model"
    answer = await here.agent_servers.ask(sandbox, "POST", path, json={"model": request.model})
    if answer.status == 400:
        raise Invalid(await answer.read_detail() or "the agent is none of another maker, or can't change its model")
    if answer.status == 504:
        raise Overdue(await answer.read_detail() or "the agent does not answer")
    answer.need()
    await run_in_threadpool(_record, here, conversation, request.model)
    return Success()


def _read_disabled(here: Context, user_id: str) -> set[str]:
    with here.database.reading() as session:
        stored = user_settings.load(session, here.vault, user_id)
    return set((stored and stored.disabled_skills) or ())


def _read_profile(here: Context, user_id: str, name: str) -> Llm:
    """The profile as the agent server is to have it: with a key, and under a name that no other configuration has."""
    with here.database.reading() as session:
        llm = dict(llm_profiles.load(session, here.vault, user_id).get(name))
        stored = user_settings.load(session, here.vault, user_id)
    if "api_key" not in llm and stored and stored.llm_api_key:
        llm["api_key"] = stored.llm_api_key
    # The agent server keeps the first configuration that it is shown under a name.
    fingerprint = here.vault.digest(json.dumps(llm, sort_keys=True))
    return llm | {"usage_id": f"profile:{name}:{fingerprint[:12]}"}


def _record(here: Context, conversation: Conversation, model: str | None) -> None:
    with here.database.transaction() as session:
        conversations.change(session, conversation.id, conversation.owner_id, {"llm_model": model})
