"""Tokens for git providers: V0's operations. V1's are in `secrets`."""

from typing import Any

from fastapi import APIRouter

from api.request.authentication import Caller, CurrentCaller
from api.request.context import Context, ContextDep
from api.routes.v0.legacy_route import LegacyRoute, replaced_by
from api.schemas.v0.settings import GitProvidersUpdate, Message, in_clear
from shared.users import secrets, settings_store

router = APIRouter(tags=["git providers (V0)"], route_class=LegacyRoute)

REPLACED = replaced_by("/api/v1/secrets/git-providers")


@router.post("/add-git-providers", **REPLACED)
def add_git_providers(context: ContextDep, caller: CurrentCaller, update: GitProvidersUpdate) -> Message:
    """Store the tokens in the body; those of other providers stay.

    Tokens are not checked with the provider, because that would send them to hosts they may not be meant for. A bad
    token shows at the first clone that uses it. An empty token, null or `**********` keeps the stored one.
    """
    return store_tokens(context, caller, in_clear(update))


@router.post("/unset-provider-tokens", **REPLACED)
def unset_provider_tokens(context: ContextDep, caller: CurrentCaller) -> Message:
    """Delete the tokens of all git providers."""
    delete_tokens(context, caller)
    return Message(message="Unset Git provider tokens")


def store_tokens(context: Context, caller: Caller, changes: dict[str, Any]) -> Message:
    """Store tokens, and the MCP servers of the same request."""
    with context.database.transaction() as session:
        secrets.put_provider_tokens(session, context.vault, caller.id, changes.get("provider_tokens") or {})
        if changes.get("mcp_config") is not None:
            settings_store.change(session, context.vault, caller.id, {"mcp_config": changes["mcp_config"]})
    return Message(message="Git providers stored")


def delete_tokens(context: Context, caller: Caller) -> None:
    """Delete the caller's tokens of all git providers."""
    with context.database.transaction() as session:
        secrets.delete_provider_tokens(session, caller.id)
