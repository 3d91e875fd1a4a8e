"""The current user: identity and settings."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query

from api.errors.openapi import error_responses
from api.request.authentication import Caller, CurrentCaller, UserRoute
from api.request.context import Context, ContextDep
from api.routes.v1.sandbox_secrets import owner_of_running
from api.schemas.v1.settings import serialize_settings_v1
from api.schemas.v1.users import UserGitInfo, UserInfo
from shared.errors import Forbidden, WorkspaceError
from shared.sandboxes import queries as sandbox_queries
from shared.users import secrets, settings_store
from shared.users.mcp_config import enabled_servers
from shared.users.settings import StoredSettings

router = APIRouter(prefix="/users", tags=["users"], route_class=UserRoute)

NO_PROVIDER = "no git provider is connected: store a token for one"

SessionKey = Annotated[str | None, Header(alias="X-Session-API-Key", description="The key of a running sandbox")]


@router.get("/me", response_model=UserInfo, responses=error_responses(403))
def get_me(
    context: ContextDep,
    caller: CurrentCaller,
    expose_secrets: Annotated[
        bool, Query(description="Show secrets in plain text; requires a sandbox's session key")
    ] = False,
    session_key: SessionKey = None,
) -> dict[str, Any]:
    """The caller, with their settings in both shapes and secrets masked. Settings not stored have their defaults.

    With `expose_secrets` the secrets are in plain text. This requires the session key of a running sandbox of the
    caller: 401 without one, 403 with another user's.
    """
    if expose_secrets:
        _check_sandbox(context, caller, session_key)
    with context.database.reading() as session:
        stored = settings_store.load(session, context.vault, caller.id) or StoredSettings()
        names = secrets.describe_secrets(session, caller.id)
        hosts = secrets.provider_hosts(session, caller.id)
    shown = serialize_settings_v1(stored, names, hosts, expose=expose_secrets)
    if not expose_secrets and _is_from_sandbox(context, caller, session_key):
        # The Python client builds its MCP servers from this, without `expose_secrets`, and starts all of them.
        shown["mcp_config"] = enabled_servers(stored.mcp_config)
    return shown | {"id": caller.id, "name": caller.name}


@router.get("/git-info", responses=error_responses(403))
def get_git_info(context: ContextDep, caller: CurrentCaller) -> UserGitInfo:
    """The caller's git identity; 403 while no provider is connected."""
    with context.database.reading() as session:
        stored = settings_store.load(session, context.vault, caller.id) or StoredSettings()
        account = next(iter(secrets.provider_accounts(session, caller.id)), None)
    if account is None:
        raise Forbidden(NO_PROVIDER)
    return UserGitInfo(
        id=account.account_id or caller.id,
        login=account.account_id or stored.git_user_name or caller.name,
        avatar_url="",
        name=stored.git_user_name,
        email=stored.git_user_email,
    )


def _is_from_sandbox(context: Context, caller: Caller, session_key: str | None) -> bool:
    try:
        _check_sandbox(context, caller, session_key)
    except WorkspaceError:
        return False
    return True


def _check_sandbox(context: Context, caller: Caller, session_key: str | None) -> None:
    """Require the session key of a running sandbox of the caller."""
    with context.database.reading() as session:
        sandbox = sandbox_queries.find_by_session_key(session, context.vault, session_key or "")
    if owner_of_running(sandbox) != caller.id:
        raise Forbidden("the session key belongs to another user's sandbox")
