"""The caller's own API keys: create, list and revoke them with any one of them."""

from fastapi import APIRouter

from api.errors.openapi import error_responses
from api.request.authentication import CurrentCaller, UserRoute
from api.request.context import UNKNOWN, ContextDep
from api.request.query_params import RowId
from api.schemas.v1.api_keys import CurrentKey, KeyCreate, KeyInfo, NewKey, serialize_key, serialize_new_key
from api.schemas.v1.fields import Success
from shared.errors import Unauthenticated
from shared.users import api_keys

router = APIRouter(prefix="/keys", tags=["account"], route_class=UserRoute)


@router.get("")
def get_keys(context: ContextDep, caller: CurrentCaller) -> list[KeyInfo]:
    """The caller's valid keys, oldest first, each shown by its first characters."""
    with context.database.reading() as session:
        return [serialize_key(row) for row in api_keys.list_in_force(session, caller.id)]


@router.post("", status_code=201, responses=error_responses(404, 409))
def create_key(context: ContextDep, caller: CurrentCaller, wanted: KeyCreate) -> NewKey:
    """Create a key. Only this response shows it. It expires no later than the key that it is created with."""
    with context.database.transaction() as session:
        row, key = api_keys.create_own_key(
            session, context.vault, caller.id, wanted.name, wanted.expires_at, caller.key_id
        )
        return serialize_new_key(row, key)


@router.get("/current")
def get_current_key(context: ContextDep, caller: CurrentCaller) -> CurrentKey:
    """The key of this request, by its name and its first characters, and its owner."""
    with context.database.reading() as session:
        key = api_keys.find_in_force(session, caller.id, caller.key_id)
    if key is None:  # it was revoked a moment ago
        raise Unauthenticated(UNKNOWN)
    return CurrentKey(
        org_id=caller.id,
        user_id=caller.id,
        id=key.id,
        name=key.name,
        prefix=key.prefix,
        auth_type="cookie" if caller.is_browser else "bearer",
    )


@router.delete("/{key_id}")
def revoke_key(context: ContextDep, caller: CurrentCaller, key_id: RowId) -> Success:
    """Revoke a key, from the next request on. It may be the key of this request."""
    with context.database.transaction() as session:
        api_keys.revoke_own_key(session, caller.id, key_id)
    return Success()
