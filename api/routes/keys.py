"""The caller's own API keys: made, listed and revoked by whoever holds one of them."""

from fastapi import APIRouter

from api.auth import ForUsers, Me
from api.context import Here
from api.query import RowId
from api.refusals import refusals
from api.schemas.keys import CurrentKey, KeyCreate, KeyInfo, NewKey, show_key, show_new_key
from api.schemas.wire import Success
from shared.store import users

router = APIRouter(prefix="/keys", tags=["account"], route_class=ForUsers)


@router.get("")
def get_keys(here: Here, me: Me) -> list[KeyInfo]:
    """The caller's keys in force, oldest first, by their first characters."""
    with here.database.reading() as session:
        return [show_key(row) for row in users.list_in_force(session, me.id)]


@router.post("", status_code=201, responses=refusals(404, 409))
def create_key(here: Here, me: Me, wanted: KeyCreate) -> NewKey:
    """A new key; it is shown now, and never again. It does not outlive the key that it is made with."""
    with here.database.transaction() as session:
        row, key = users.create_own_key(session, here.vault, me.id, wanted.name, wanted.expires_at, me.key_id)
        return show_new_key(row, key)


@router.get("/current")
async def get_current_key(me: Me) -> CurrentKey:
    """The key that is used, by its first characters, and whose it is."""
    return CurrentKey(org_id=me.id, user_id=me.id, id=me.key_id, prefix=me.key_prefix)


@router.delete("/{key_id}")
def revoke_key(here: Here, me: Me, key_id: RowId) -> Success:
    """Let a key open nothing any more, from the next request on; the one that is used, too."""
    with here.database.transaction() as session:
        users.revoke_own_key(session, me.id, key_id)
    return Success()
