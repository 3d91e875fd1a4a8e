"""V0's operations for the choices in forms."""

from typing import Any

from fastapi import APIRouter

from api.routes.v0.legacy_route import LegacyRoute, replaced_by
from api.schemas.v1.llm_catalog import SUGGESTED

router = APIRouter(prefix="/options", tags=["config (V0)"], route_class=LegacyRoute)

AGENTS = ["CodeActAgent"]
SECURITY_ANALYZERS = ["llm"]
# The features that V0's web UI asks about. This service offers none of them.
FLAGS = {"ENABLE_BILLING": False, "HIDE_LLM_SETTINGS": False, "ENABLE_JIRA": False, "ENABLE_LINEAR": False}
SCHEMA = replaced_by("/api/v1/settings/agent-schema")


@router.get("/models", **replaced_by("/api/v1/config/models/search"))
async def list_models() -> list[str]:
    """Models that forms suggest, under the names that settings accept."""
    return [f"{model.provider}/{model.name}" for model in SUGGESTED]


@router.get("/agents", **SCHEMA)
async def list_agents() -> list[str]:
    """The available agents: one."""
    return AGENTS


@router.get("/security-analyzers", **SCHEMA)
async def list_security_analyzers() -> list[str]:
    """The available analyzers of an agent's actions."""
    return SECURITY_ANALYZERS


@router.get("/config", **replaced_by("/api/v1/web-client/config"))
async def get_config() -> dict[str, Any]:
    """The features that V0's web UI offers."""
    return {"APP_MODE": "oss", "GITHUB_CLIENT_ID": "", "POSTHOG_CLIENT_KEY": "", "FEATURE_FLAGS": FLAGS}
