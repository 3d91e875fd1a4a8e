"""Who calls, and what they have set."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query

from api.auth import Caller, ForUsers, Me
from api.context import Context, Here
from api.refusals import refusals
from api.routes.sandbox_secrets import owner_of_running
from api.schemas.settings_v1 import show_settings_v1
from api.schemas.users import UserGitInfo, UserInfo
from shared.errors import Forbidden, WorkspaceError
from shared.store import sandboxes, secrets, user_settings
from shared.user_settings import StoredSettings

router = APIRouter(prefix="/users", tags=["users"], route_class=ForUsers)

NO_PROVIDER = "no git provider is connected: store a token for one"

SessionKey = Annotated[str | None, Header(alias="X-Session-API-Key", description="The key of a running sandbox")]


@router.get("/me", response_model=UserInfo, responses=refusals(403))
def get_me(
    here: Here,
    me: Me,
    expose_secrets: Annotated[bool, Query(description="Show secrets in clear; wants a sandbox's key too")] = False,
    session_key: SessionKey = None,
) -> dict[str, Any]:
    """The caller with their settings in both shapes, the defaults where none are stored, secrets masked.

    With `expose_secrets` they are in clear, for a caller who also holds the session key of a running sandbox of
    theirs: 401 without one, 403 with another's.
    """
    if expose_secrets:
        _check_sandbox(here, me, session_key)
    with here.database.reading() as session:
        stored = user_settings.load(session, here.vault, me.id) or StoredSettings()
        names = secrets.describe_secrets(session, me.id)
        hosts = secrets.provider_hosts(session, me.id)
    shown = show_settings_v1(stored, names, hosts, expose=expose_secrets)
    if not expose_secrets and _is_from_sandbox(here, me, session_key):
        # The Python client builds its MCP servers from this, and asks for no secrets when it does.
        shown["mcp_config"] = stored.mcp_config
    return shown | {"id": me.id, "name": me.name}


@router.get("/git-info", responses=refusals(403))
def get_git_info(here: Here, me: Me) -> UserGitInfo:
    """How the caller is known to git; a 403 while no provider is connected."""
    with here.database.reading() as session:
        stored = user_settings.load(session, here.vault, me.id) or StoredSettings()
        account = next(iter(secrets.provider_accounts(session, me.id)), None)
    if account is None:
        raise Forbidden(NO_PROVIDER)
    return UserGitInfo(
        id=account.account_id or me.id,
        login=account.account_id or stored.git_user_name or me.name,
        avatar_url="",
        name=stored.git_user_name,
        email=stored.git_user_email,
    )


def _is_from_sandbox(here: Context, me: Caller, session_key: str | None) -> bool:
    try:
        _check_sandbox(here, me, session_key)
    except WorkspaceError:
        return False
    return True


def _check_sandbox(here: Context, me: Caller, session_key: str | None) -> None:
    """Want the key of a running sandbox of the caller's.

    Raises:
        Unauthenticated: it is no running sandbox's.
        Forbidden: it is another's.
    """
    with here.database.reading() as session:
        sandbox = sandboxes.find_by_session_key(session, here.vault, session_key or "")
    if owner_of_running(sandbox) != me.id:
        raise Forbidden("that is the key of another user's sandbox")
