"""Custom secrets: users write values and never read them back.

Only a running sandbox may read its owner's values (`sandbox_secrets`). A sandbox's agent gets them as variables when a
conversation starts.
"""

from typing import Annotated

from fastapi import APIRouter, Query

from api.request.authentication import Caller, CurrentCaller, UserRoute
from api.request.context import Context, ContextDep
from api.request.query_params import Limit, PageId
from api.schemas.v0.settings import GitProvidersUpdate, Message, in_clear
from api.schemas.v1.fields import PageOf
from api.schemas.v1.secrets import CustomSecretCreate, CustomSecretInfo, CustomSecretWithoutValue
from shared.errors import Invalid
from shared.users import secrets, settings_store
from shared.users.secrets import check_free

router = APIRouter(prefix="/secrets", tags=["secrets"], route_class=UserRoute)


@router.get("/search")
def search_secrets(
    context: ContextDep,
    caller: CurrentCaller,
    name__contains: Annotated[str | None, Query(max_length=256)] = None,
    page_id: PageId = None,
    limit: Limit = 100,
) -> PageOf[CustomSecretInfo]:
    """A page of the caller's secrets by name, without their values."""
    with context.database.reading() as session:
        page = secrets.search_secrets(session, caller.id, name__contains, page_id, limit)
        items = [CustomSecretInfo(name=row.name, description=row.description) for row in page.items]
    return PageOf(items=items, next_page_id=page.next_page_id)


@router.post("", status_code=201)
def create_secret(context: ContextDep, caller: CurrentCaller, secret: CustomSecretCreate) -> Message:
    """Store a secret, or a new value for an existing one. An omitted description stays."""
    store_secret(context, caller, secret)
    return Message(message="Secret stored")


@router.post("/git-providers")
def store_git_providers(context: ContextDep, caller: CurrentCaller, update: GitProvidersUpdate) -> Message:
    """Store the tokens in the body; those of other providers stay.

    Tokens are not checked with the provider, because that would send them to hosts they may not be meant for. A bad
    token shows at the first clone that uses it. An empty token, null or `**********` keeps the stored one.
    """
    sent = in_clear(update)
    with context.database.transaction() as session:
        secrets.put_provider_tokens(session, context.vault, caller.id, sent.get("provider_tokens") or {})
        if sent.get("mcp_config") is not None:
            settings_store.change(session, context.vault, caller.id, {"mcp_config": sent["mcp_config"]})
    return Message(message="Git providers stored")


@router.delete("/git-providers")
def delete_git_providers(context: ContextDep, caller: CurrentCaller) -> Message:
    """Delete the tokens of all git providers."""
    with context.database.transaction() as session:
        secrets.delete_provider_tokens(session, caller.id)
    return Message(message="Git providers removed")


@router.put("/{secret_id}")
def change_secret(
    context: ContextDep, caller: CurrentCaller, secret_id: str, change: CustomSecretWithoutValue
) -> Message:
    """Change the name and the description of a secret; its id is its name. Without a description it has none."""
    if change.name != secret_id:
        _refuse_reserved(change.name)
    with context.database.transaction() as session:
        secrets.change_custom_secret(session, caller.id, secret_id, change.name, change.description)
    return Message(message="Secret changed")


@router.delete("/{secret_id}")
def delete_secret(context: ContextDep, caller: CurrentCaller, secret_id: str) -> Message:
    """Delete a secret."""
    with context.database.transaction() as session:
        secrets.delete_custom_secret(session, caller.id, secret_id)
    return Message(message="Secret deleted")


def store_secret(context: Context, caller: Caller, secret: CustomSecretCreate, *, new: bool = False) -> None:
    """Store a secret.

    Raises:
        Invalid: with `new`, a secret with this name exists; or the user would have too many.
    """
    sent = in_clear(secret)
    entry = {"secret": sent["value"]} | ({"description": sent["description"]} if "description" in sent else {})
    with context.database.transaction() as session:
        if new:
            secrets.check_untaken(session, caller.id, secret.name)
        secrets.put_custom_secrets(session, context.vault, caller.id, {secret.name: entry})


def _refuse_reserved(name: str) -> None:
    try:
        check_free([name])
    except ValueError as error:
        raise Invalid(str(error)) from None
