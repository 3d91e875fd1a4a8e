"""Tokens for git providers."""

from fastapi import APIRouter

from api.auth import ForUsers, Me
from api.context import Here
from api.schemas.settings import GitProvidersUpdate, Message, in_clear
from shared.store import secrets, user_settings

router = APIRouter(tags=["git providers"], route_class=ForUsers)


@router.post("/add-git-providers")
def add_git_providers(here: Here, me: Me, update: GitProvidersUpdate) -> Message:
    """Store the tokens that are sent and keep those of other providers.

    No provider is asked whether a token is good: that would show it to hosts it may not be meant for. The
    first clone that needs it tells. A token that is empty, null or `**********` keeps the stored one.
    """
    changes = in_clear(update)
    with here.database.transaction() as session:
        secrets.put_provider_tokens(session, here.vault, me.id, changes.get("provider_tokens") or {})
        if changes.get("mcp_config") is not None:
            user_settings.change(session, here.vault, me.id, {"mcp_config": changes["mcp_config"]})
    return Message(message="Git providers stored")
