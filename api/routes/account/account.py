"""Operations of the hosted service about the current user. Not part of V1, but the web UI needs them."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from api.request.authentication import UserRoute
from api.schemas.v1.fields import Success

router = APIRouter(tags=["account"], route_class=UserRoute)


class LlmKey(BaseModel):
    """A model's key from the service itself; this service issues none."""

    key: str | None = None


class AgentProfiles(BaseModel):
    """Saved agents and the active one: this service has none, only LLM profiles."""

    profiles: list[Any] = []
    active_agent_profile_id: str | None = None


@router.post("/authenticate")
async def authenticate() -> Success:
    """Check the caller's key or login; 401 if it is not valid."""
    return Success()


@router.get("/keys/llm/byor")
async def get_llm_key() -> LlmKey:
    """No key: each user brings their own, in the settings."""
    return LlmKey()


@router.get("/agent-profiles")
async def get_agent_profiles() -> AgentProfiles:
    """No agent profiles."""
    return AgentProfiles()
