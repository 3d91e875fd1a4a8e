"""The operators' list of users."""

from datetime import timedelta

import pytest
from sqlmodel import col, select, update

from shared.admin import users
from shared.clock import after, now
from shared.db.database import Database
from shared.models import ApiKey
from tests.factories import make_user

HOUR = timedelta(hours=1)


@pytest.fixture
def used_key(database: Database) -> str:
    """The id of the key of a user, bob, which was used."""
    user = make_user(database, "bob")
    with database.transaction() as session:
        key = session.exec(select(ApiKey.id).where(ApiKey.user_id == user.id)).one()
        session.execute(update(ApiKey).where(col(ApiKey.id) == key).values(last_used_at=now()))
    return key


@pytest.mark.parametrize(
    ("columns", "keys"),
    [({"expires_at": now() - HOUR}, 0), ({"revoked_at": now() - HOUR}, 0), ({"expires_at": after(3600)}, 1)],
    ids=["expired", "revoked", "in force"],
)
def test_keys_in_force_are_counted_and_each_key_s_use_is_shown(
    database: Database, used_key: str, columns: dict[str, object], keys: int
) -> None:
    with database.transaction() as session:
        session.execute(update(ApiKey).where(col(ApiKey.id) == used_key).values(columns))
    with database.reading() as session:
        listed = users.read_user(session, "bob")[0]
        assert (listed.keys, listed.last_used_at is not None) == (keys, True)
        assert users.search_users(session, None, 10).items == [listed]
