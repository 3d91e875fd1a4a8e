"""Users and their API keys."""

from datetime import datetime, timedelta

import pytest
from sqlmodel import Session, select

from shared.clock import after, now
from shared.crypto import Vault, new_secret_key
from shared.db.database import Database
from shared.errors import Conflict, NotFound, Unauthenticated
from shared.models import ApiKey
from shared.users import accounts, api_keys
from shared.users.api_keys import AuthenticatedKey
from tests.factories import VAULT, ApiUser
from tests.interleaving import overlap


def authenticate(database: Database, key: str, vault: Vault = VAULT) -> AuthenticatedKey:
    [holder] = api_keys.authenticate(database, vault, [key])
    if holder is None:
        raise Unauthenticated("unknown key")
    return holder


def add_key(database: Database, user: ApiUser, expires_at: datetime | None = None, vault: Vault = VAULT) -> str:
    with database.transaction() as session:
        return api_keys.create_key(session, vault, accounts.get_user(session, user.name), "another", expires_at)


def revoke(database: Database, prefix: str) -> int:
    with database.transaction() as session:
        return api_keys.revoke_key(session, prefix)


def test_key_identifies_its_user(database: Database, user: ApiUser, other_user: ApiUser) -> None:
    for owner in (user, other_user):
        found = authenticate(database, owner.key)
        assert (found.id, found.name) == (owner.id, owner.name)
        assert owner.key.startswith(found.key_prefix)


@pytest.mark.parametrize("key", ["", "aw_", "aw_" + "x" * 43, "\x00", "\udcff", "ключ", "a" * 100_000])
@pytest.mark.usefixtures("user")
def test_unknown_keys_are_rejected(database: Database, key: str) -> None:
    with pytest.raises(Unauthenticated):
        authenticate(database, key)


def test_prefix_and_digest_are_not_accepted_as_keys(database: Database, user: ApiUser) -> None:
    for text in (user.key[:-1], user.key[:11], VAULT.digest(user.key), user.key.upper()):
        with pytest.raises(Unauthenticated):
            authenticate(database, text)


def test_revoked_key_is_rejected_and_other_keys_stay_valid(database: Database, user: ApiUser) -> None:
    other = add_key(database, user)
    assert revoke(database, user.key[: api_keys.PREFIX_LENGTH]) == 1
    with pytest.raises(Unauthenticated):
        authenticate(database, user.key)
    assert authenticate(database, other).id == user.id
    assert revoke(database, user.key) == 0


def test_key_is_valid_until_it_expires(database: Database, user: ApiUser) -> None:
    assert authenticate(database, add_key(database, user, after(60))).id == user.id
    with pytest.raises(Unauthenticated):
        authenticate(database, add_key(database, user, after(-1)))


def test_keys_stay_valid_after_the_secret_key_is_rotated(database: Database, user: ApiUser) -> None:
    fresh = new_secret_key()
    rotated = Vault([fresh, *(key.decode() for key in VAULT._keys)])
    assert authenticate(database, user.key, rotated).id == user.id
    newer = add_key(database, user, vault=rotated)
    assert authenticate(database, newer, Vault([fresh])).id == user.id
    with pytest.raises(Unauthenticated):
        authenticate(database, user.key, Vault([fresh]))


def test_key_itself_is_not_stored(database: Database, user: ApiUser) -> None:
    with database.reading() as session:
        (row,) = session.exec(select(ApiKey)).all()
    assert all(user.key not in str(value) for value in row.model_dump().values())


def test_last_use_is_recorded_at_most_once_a_minute(database: Database, user: ApiUser) -> None:
    holder = authenticate(database, user.key)
    assert holder.use_is_stale
    api_keys.record_use(database, holder.key_id)
    assert not authenticate(database, user.key).use_is_stale
    with database.transaction() as session:
        key = session.get_one(ApiKey, holder.key_id)
        key.last_used_at = now() - api_keys.LAST_USE_RESOLUTION - timedelta(seconds=1)
    assert authenticate(database, user.key).use_is_stale


def test_name_of_another_user_is_rejected(database: Database, user: ApiUser) -> None:
    with pytest.raises(Conflict, match="alice"), database.transaction() as session:
        accounts.create_user(session, user.name)
    with database.reading() as session:
        assert [row.name for row in accounts.list_users(session)] == [user.name]


def test_unknown_user_is_not_found(database: Database) -> None:
    with pytest.raises(NotFound), database.reading() as session:
        accounts.get_user(session, "unknown")


@pytest.mark.usefixtures("other_user")
def test_keys_of_a_user_are_listed_oldest_first(database: Database, user: ApiUser) -> None:
    second = add_key(database, user)
    with database.reading() as session:
        listed = api_keys.list_keys(session, accounts.get_user(session, user.name))
    assert [row.prefix for row in listed] == [user.key[:11], second[:11]]


def create_with(session: Session, user: ApiUser, key_id: str) -> None:
    api_keys.create_own_key(session, VAULT, user.id, "another", None, key_id)


def test_key_that_was_revoked_creates_no_key(database: Database, user: ApiUser) -> None:
    """The request was authenticated before the revocation, and its body arrived after it."""
    key_id = authenticate(database, user.key).key_id
    revoke(database, user.key)
    with pytest.raises(Unauthenticated), database.transaction() as session:
        create_with(session, user, key_id)


def test_key_that_is_being_revoked_creates_no_key(database: Database, user: ApiUser) -> None:
    key_id = authenticate(database, user.key).key_id

    def revoke_own(session: Session) -> None:
        api_keys.revoke_own_key(session, user.id, key_id)
        session.flush()

    with pytest.raises(Unauthenticated):
        overlap(database, revoke_own, lambda session: create_with(session, user, key_id))
