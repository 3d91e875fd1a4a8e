"""V0's operations for the tokens of git providers, through V1's in `secrets`."""

from fastapi import APIRouter

from api.request.authentication import CurrentCaller
from api.request.context import ContextDep
from api.routes.v0.legacy_route import LegacyRoute, replaced_by
from api.routes.v1 import secrets as v1
from api.schemas.v0.settings import GitProvidersUpdate, Message

router = APIRouter(tags=["git providers (V0)"], route_class=LegacyRoute)

REPLACED = replaced_by("/api/v1/secrets/git-providers")


@router.post("/add-git-providers", **REPLACED)
def add_git_providers(context: ContextDep, caller: CurrentCaller, update: GitProvidersUpdate) -> Message:
    """Store the tokens in the body; those of other providers stay.

    Tokens are not checked with the provider, because that would send them to hosts they may not be meant for. A bad
    token shows at the first clone that uses it. An empty token, null or `**********` keeps the stored one.
    """
    return v1.store_git_providers(context, caller, update)


@router.post("/unset-provider-tokens", **REPLACED)
def unset_provider_tokens(context: ContextDep, caller: CurrentCaller) -> Message:
    """Delete the tokens of all git providers."""
    v1.delete_git_providers(context, caller)
    return Message(message="Unset Git provider tokens")
