"""V0's operations for what forms offer."""

from typing import Any

from fastapi import APIRouter

from api.routes.v0.legacy_route import LegacyRoute, replaced_by
from api.schemas.v1.llm_catalog import SUGGESTED

router = APIRouter(prefix="/options", tags=["config (V0)"], route_class=LegacyRoute)

AGENTS = ["CodeActAgent"]
SECURITY_ANALYZERS = ["llm"]
# Everything that V0's page asks about; nothing of it is on offer here.
FLAGS = {"ENABLE_BILLING": False, "HIDE_LLM_SETTINGS": False, "ENABLE_JIRA": False, "ENABLE_LINEAR": False}
SCHEMA = replaced_by("/api/v1/settings/agent-schema")


@router.get("/models", **replaced_by("/api/v1/config/models/search"))
async def list_models() -> list[str]:
    """Models that forms suggest, by the names that settings take."""
    return [f"{model.provider}/{model.name}" for model in SUGGESTED]


@router.get("/agents", **SCHEMA)
async def list_agents() -> list[str]:
    """The agent that there is."""
    return AGENTS


@router.get("/security-analyzers", **SCHEMA)
async def list_security_analyzers() -> list[str]:
    """Who can judge an agent's doings."""
    return SECURITY_ANALYZERS


@router.get("/config", **replaced_by("/api/v1/web-client/config"))
async def get_config() -> dict[str, Any]:
    """What V0's page is to offer."""
    return {"APP_MODE": "oss", "GITHUB_CLIENT_ID": "", "POSTHOG_CLIENT_KEY": "", "FEATURE_FLAGS": FLAGS}
