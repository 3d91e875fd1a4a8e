"""What clients of the hosted service ask about the one who calls; no part of V1, but pages don't work without it."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from api.request.authentication import ForUsers
from api.schemas.v1.wire_types import Success

router = APIRouter(tags=["account"], route_class=ForUsers)


class LlmKey(BaseModel):
    """A model's key from the service itself; it sells none."""

    key: str | None = None


class AgentProfiles(BaseModel):
    """Saved agents, and the one in force: there are none here, LLM profiles apart."""

    profiles: list[Any] = []
    active_agent_profile_id: str | None = None


@router.post("/authenticate")
async def authenticate() -> Success:
    """Whether the caller is known; a 401 if not."""
    return Success()


@router.get("/keys/llm/byor")
async def get_llm_key() -> LlmKey:
    """No key: each user brings their own, in the settings."""
    return LlmKey()


@router.get("/agent-profiles")
async def get_agent_profiles() -> AgentProfiles:
    """None."""
    return AgentProfiles()
