"""The caller's own API keys: made, listed and revoked by whoever holds one of them."""

from fastapi import APIRouter

from api.errors.openapi import error_responses
from api.request.authentication import CurrentCaller, ForUsers
from api.request.context import ContextDep
from api.request.query_params import RowId
from api.schemas.v1.api_keys import CurrentKey, KeyCreate, KeyInfo, NewKey, show_key, show_new_key
from api.schemas.v1.wire_types import Success
from shared.users import api_keys

router = APIRouter(prefix="/keys", tags=["account"], route_class=ForUsers)


@router.get("")
def get_keys(context: ContextDep, caller: CurrentCaller) -> list[KeyInfo]:
    """The caller's keys in force, oldest first, by their first characters."""
    with context.database.reading() as session:
        return [show_key(row) for row in api_keys.list_in_force(session, caller.id)]


@router.post("", status_code=201, responses=error_responses(404, 409))
def create_key(context: ContextDep, caller: CurrentCaller, wanted: KeyCreate) -> NewKey:
    """A new key; it is shown now, and never again. It does not outlive the key that it is made with."""
    with context.database.transaction() as session:
        row, key = api_keys.create_own_key(
            session, context.vault, caller.id, wanted.name, wanted.expires_at, caller.key_id
        )
        return show_new_key(row, key)


@router.get("/current")
async def get_current_key(caller: CurrentCaller) -> CurrentKey:
    """The key that is used, by its first characters, and whose it is."""
    return CurrentKey(org_id=caller.id, user_id=caller.id, id=caller.key_id, prefix=caller.key_prefix)


@router.delete("/{key_id}")
def revoke_key(context: ContextDep, caller: CurrentCaller, key_id: RowId) -> Success:
    """Let a key open nothing any more, from the next request on; the one that is used, too."""
    with context.database.transaction() as session:
        api_keys.revoke_own_key(session, caller.id, key_id)
    return Success()
