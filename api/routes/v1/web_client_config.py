"""The configuration that a web UI reads before its user signs in."""

from fastapi import APIRouter

from api.errors.openapi import error_responses
from api.schemas.v1.catalog import WebClientConfig
from shared.clock import now
from shared.users.settings import DEFAULT_HOSTS

router = APIRouter(prefix="/web-client", tags=["config"])

STARTED_AT = now()


@router.get("/config", responses=error_responses(429))
async def get_config() -> WebClientConfig:
    """The features that a web UI offers; no key is needed."""
    return WebClientConfig(updated_at=STARTED_AT, provider_default_hosts=DEFAULT_HOSTS)
