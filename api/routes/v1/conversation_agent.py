"""A conversation's agent: read its skills and hooks, and switch its model, at its agent server."""

import json
from uuid import UUID

from fastapi import APIRouter

from api.agent_server.responses import read_response
from api.errors.openapi import error_responses
from api.errors.upstream import GatewayTimeout
from api.request.authentication import CurrentCaller, UserRoute
from api.request.context import Context, ContextDep
from api.routes.v1.conversation_workspace import load_shown
from api.schemas.v1.conversation_agent import (
    HookList,
    SkillList,
    SwitchAcpModelRequest,
    SwitchProfileRequest,
    list_hooks,
    list_skills,
)
from api.schemas.v1.fields import Success
from api.schemas.v1.sandboxes import wire_status
from shared.agent_server import paths
from shared.agent_server.responses import Hooks, Skills
from shared.conversations import queries as conversation_queries
from shared.conversations.webhook_reports import MAX_MODEL_LENGTH
from shared.errors import Invalid
from shared.json_documents import clean_text
from shared.models import Conversation
from shared.states import Status
from shared.users import settings_store
from shared.users.llm_profiles import Llm
from shared.users.settings import StoredSettings
from shared.users.settings_v1 import with_stored_key

router = APIRouter(prefix="/app-conversations/{conversation_id}", tags=["conversations"], route_class=UserRoute)


@router.get("/skills", responses=error_responses(409, 413, 502))
async def get_skills(context: ContextDep, caller: CurrentCaller, conversation_id: str) -> SkillList:
    """The project's skills, except those disabled in the caller's settings; none while the sandbox is paused."""
    conversation, sandbox = await context.run_in_turn(load_shown, context, caller, conversation_id)
    if wire_status(sandbox) == Status.PAUSED:
        return SkillList(skills=[])
    wanted = {"load_public": False, "load_user": False, "load_org": False, "load_project": True}
    body = wanted | {"project_dir": conversation.working_dir}
    async with context.agent_servers.exchange(sandbox, "POST", paths.SKILLS, json=body) as response:
        found = await context.run_in_turn(list_skills, (await read_response(response, Skills))[0])
    disabled = await context.run_in_turn(_read_disabled, context, caller.id)
    return SkillList(skills=[skill for skill in found.skills if skill.name not in disabled])


@router.get("/hooks", responses=error_responses(409, 413, 502))
async def get_hooks(context: ContextDep, caller: CurrentCaller, conversation_id: str) -> HookList:
    """The hooks that the project runs at the agent's actions; none while the sandbox is paused."""
    conversation, sandbox = await context.run_in_turn(load_shown, context, caller, conversation_id)
    if wire_status(sandbox) == Status.PAUSED:
        return HookList(hooks=[])
    body = {"project_dir": conversation.working_dir}
    async with context.agent_servers.exchange(sandbox, "POST", paths.HOOKS, json=body) as response:
        return await context.run_in_turn(list_hooks, (await read_response(response, Hooks))[0])


@router.post("/switch_profile", responses=error_responses(409, 502))
async def switch_profile(
    context: ContextDep, caller: CurrentCaller, conversation_id: str, request: SwitchProfileRequest
) -> Success:
    """Switch the agent to a saved LLM profile; the settings stay unchanged."""
    conversation, sandbox = await context.run_in_turn(load_shown, context, caller, conversation_id)
    llm = await context.run_in_turn(_read_profile, context, caller.id, request.profile_name)
    path = paths.conversation(UUID(conversation.id), "/switch_llm")
    (await context.agent_servers.request(sandbox, "POST", path, json={"llm": llm})).require_success()
    await context.run_in_turn(_record, context, conversation, llm.get("model"))
    return Success()


@router.post("/switch_acp_model", responses=error_responses(409, 502, 504))
async def switch_acp_model(
    context: ContextDep, caller: CurrentCaller, conversation_id: str, request: SwitchAcpModelRequest
) -> Success:
    """Switch an ACP agent to another of its models. The built-in agent takes a profile instead."""
    conversation, sandbox = await context.run_in_turn(load_shown, context, caller, conversation_id)
    path = paths.conversation(UUID(conversation.id), "/switch_acp_model")
    response = await context.agent_servers.request(sandbox, "POST", path, json={"model": request.model})
    if response.status == 400:
        raise Invalid(response.detail or "the agent is not an ACP agent, or cannot change its model")
    if response.status == 504:
        raise GatewayTimeout(response.detail or "the agent does not respond")
    response.require_success()
    await context.run_in_turn(_record, context, conversation, request.model)
    return Success()


def _read_disabled(context: Context, user_id: str) -> set[str]:
    with context.database.reading() as session:
        stored = settings_store.load(session, context.vault, user_id)
    return set((stored and stored.disabled_skills) or ())


def _read_profile(context: Context, user_id: str, name: str) -> Llm:
    """The profile to send, with a key stored for its LLM server, and a `usage_id` that no other configuration has."""
    with context.database.reading() as session:
        stored = settings_store.load(session, context.vault, user_id) or StoredSettings()
    llm = with_stored_key(stored.llm_profiles.get(name), stored)
    # The agent server keeps the first configuration sent under a `usage_id`.
    fingerprint = context.vault.digest(json.dumps(llm, sort_keys=True))
    return llm | {"usage_id": f"profile:{name}:{fingerprint[:12]}", "stream": True}


def _record(context: Context, conversation: Conversation, model: str | None) -> None:
    # Profiles from before the max length may have a longer name.
    values = {"llm_model": clean_text(model, MAX_MODEL_LENGTH)}
    with context.database.transaction() as session:
        conversation_queries.change(session, conversation.id, conversation.owner_id, values)
