"""The configuration that a web UI reads before its user signs in."""

from fastapi import APIRouter

from api.errors.openapi import error_responses
from api.schemas.v1.catalog import WebClientConfig
from shared.clock import now

router = APIRouter(prefix="/web-client", tags=["config"])

STARTED_AT = now()
DEFAULT_HOSTS = {
    "github": "github.com",
    "gitlab": "gitlab.com",
    "bitbucket": "bitbucket.org",
    "forgejo": "codeberg.org",
    "azure_devops": "dev.azure.com",
}


@router.get("/config", responses=error_responses(429))
async def get_config() -> WebClientConfig:
    """The features that a web UI offers; no key is needed."""
    return WebClientConfig(updated_at=STARTED_AT, provider_default_hosts=DEFAULT_HOSTS)
