"""Health: needs no key, and shows nothing but health (wire contract 1.12)."""

import time
from typing import Any

from fastapi import APIRouter

from api.errors.openapi import error_responses
from api.request.context import ContextDep
from shared import __version__

router = APIRouter(tags=["health"])

STARTED = time.monotonic()


@router.get("/alive")
async def get_alive() -> dict[str, str]:
    """The process responds."""
    return {"status": "ok"}


@router.get("/health")
async def get_health() -> str:
    """The process responds."""
    return "OK"


@router.get("/ready", responses=error_responses(503))
async def get_ready(context: ContextDep) -> str:
    """The database responds too; otherwise 503, within seconds."""
    await context.readiness.check()
    return "OK"


@router.get("/server_info")
async def get_server_info() -> dict[str, Any]:
    """The version of the service, and the uptime of this process in seconds."""
    return {
        "uptime": time.monotonic() - STARTED,
        "idle_time": 0.0,
        "title": "Agent Workspace",
        "version": __version__,
        "resources": {},
    }
