"""V1's settings: read in both shapes, written in either."""

from typing import Any

from fastapi import APIRouter

from api.request.authentication import CurrentCaller, UserRoute
from api.request.context import ContextDep
from api.routes.v0.settings import NEVER_SAVED, serialize_stored, store
from api.schemas.v0.settings import Message
from api.schemas.v1.settings import SettingsInfoV1, SettingsUpdateV1, read_changes, serialize_settings_v1
from api.schemas.v1.settings_form import AGENT_SCHEMA, CONVERSATION_SCHEMA

router = APIRouter(prefix="/settings", tags=["settings"], route_class=UserRoute)


@router.get("", response_model=SettingsInfoV1, responses={404: {"description": NEVER_SAVED}})
def get_settings(context: ContextDep, caller: CurrentCaller) -> Any:
    """The caller's settings, secrets masked. 404 until settings, secrets or tokens are stored: the defaults hold."""
    return serialize_stored(context, caller, serialize_settings_v1)


@router.post("")
def store_settings(context: ContextDep, caller: CurrentCaller, update: SettingsUpdateV1) -> Message:
    """Change the settings in the body, under V1's or V0's names; the others stay.

    Null sets a field to its default, except that it keeps keys, `llm_model`, `llm_base_url` and
    `user_consents_to_analytics`; in `agent_settings_diff` it keeps the keys only. An empty text clears a key;
    `**********` keeps a secret.
    """
    return store(context, caller, read_changes(update))


@router.get("/agent-schema")
def get_agent_schema() -> dict[str, Any]:
    """The schema of agent settings, for forms."""
    return AGENT_SCHEMA


@router.get("/conversation-schema")
def get_conversation_schema() -> dict[str, Any]:
    """The schema of conversation settings, for forms."""
    return CONVERSATION_SCHEMA
