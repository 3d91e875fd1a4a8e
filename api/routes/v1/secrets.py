"""Custom secrets: values are written, never read; only a sandbox that runs may ask for its owner's (`sandbox_secrets`).

A sandbox's agent is given them as variables when a conversation is started.
"""

from typing import Annotated

from fastapi import APIRouter, Query

from api.request.authentication import Caller, CurrentCaller, ForUsers
from api.request.context import Context, ContextDep
from api.request.query_params import Limit, PageId
from api.routes.v1.provider_tokens import forget_tokens, store_tokens
from api.schemas.v0.settings import GitProvidersUpdate, Message, in_clear
from api.schemas.v1.secrets import CustomSecretCreate, CustomSecretInfo, CustomSecretWithoutValue
from api.schemas.v1.wire_types import PageOf
from shared.errors import Invalid
from shared.users import secrets
from shared.users.secret_names import check_free

router = APIRouter(prefix="/secrets", tags=["secrets"], route_class=ForUsers)


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
    """Store a secret, or a new value for one there is; a description that is left out stays."""
    store_secret(context, caller, secret)
    return Message(message="Secret stored")


@router.post("/git-providers")
def store_git_providers(context: ContextDep, caller: CurrentCaller, update: GitProvidersUpdate) -> Message:
    """Store the tokens that are sent and keep those of other providers.

    No provider is asked whether a token is good: that would show it to hosts it may not be meant for. The first
    clone that needs it tells. A token that is empty, null or `**********` keeps the stored one.
    """
    return store_tokens(context, caller, in_clear(update))


@router.delete("/git-providers")
def delete_git_providers(context: ContextDep, caller: CurrentCaller) -> Message:
    """Forget the tokens of all git providers."""
    forget_tokens(context, caller)
    return Message(message="Git providers removed")


@router.put("/{secret_id}")
def change_secret(
    context: ContextDep, caller: CurrentCaller, secret_id: str, change: CustomSecretWithoutValue
) -> Message:
    """Rename or redescribe a secret; its id is its name. A description that is left out stays."""
    sent = in_clear(change)
    if change.name != secret_id:
        _refuse_reserved(change.name)
    with context.database.transaction() as session:
        secrets.change_custom_secret(session, caller.id, secret_id, change.name, sent)
    return Message(message="Secret changed")


@router.delete("/{secret_id}")
def delete_secret(context: ContextDep, caller: CurrentCaller, secret_id: str) -> Message:
    """Forget a secret."""
    with context.database.transaction() as session:
        secrets.delete_custom_secret(session, caller.id, secret_id)
    return Message(message="Secret deleted")


def store_secret(context: Context, caller: Caller, secret: CustomSecretCreate, *, new: bool = False) -> None:
    """Keep a secret.

    Raises:
        Invalid: it is to be a new one, and there is one of that name; or there would be too many.
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
