"""Tokens for git providers. The operations are V0's; V1's are in `secrets`."""

from typing import Any

from fastapi import APIRouter

from api.auth import Caller, Me
from api.context import Context, Here
from api.legacy import LegacyRoute, replaced_by
from api.schemas.settings import GitProvidersUpdate, Message, in_clear
from shared.store import secrets, user_settings

router = APIRouter(tags=["git providers (V0)"], route_class=LegacyRoute)

REPLACED = replaced_by("/api/v1/secrets/git-providers")


@router.post("/add-git-providers", **REPLACED)
def add_git_providers(here: Here, me: Me, update: GitProvidersUpdate) -> Message:
    """Store the tokens that are sent and keep those of other providers.

    No provider is asked whether a token is good: that would show it to hosts it may not be meant for. The
    first clone that needs it tells. A token that is empty, null or `**********` keeps the stored one.
    """
    return store_tokens(here, me, in_clear(update))


@router.post("/unset-provider-tokens", **REPLACED)
def unset_provider_tokens(here: Here, me: Me) -> Message:
    """Forget the tokens of all git providers."""
    forget_tokens(here, me)
    return Message(message="Unset Git provider tokens")


def store_tokens(here: Context, me: Caller, changes: dict[str, Any]) -> Message:
    """Keep tokens, and the MCP servers that came with them."""
    with here.database.transaction() as session:
        secrets.put_provider_tokens(session, here.vault, me.id, changes.get("provider_tokens") or {})
        if changes.get("mcp_config") is not None:
            user_settings.change(session, here.vault, me.id, {"mcp_config": changes["mcp_config"]})
    return Message(message="Git providers stored")


def forget_tokens(here: Context, me: Caller) -> None:
    """Keep nothing for git providers."""
    with here.database.transaction() as session:
        secrets.delete_provider_tokens(session, me.id)
