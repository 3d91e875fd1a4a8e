"""Revoked and expired API keys are deleted after their retention."""

from datetime import timedelta

import pytest
from sqlmodel import col, func, select, update

from shared.clock import after, now
from shared.db.database import Database
from shared.models import ApiKey, DeviceAuthorization, WebSession
from shared.users import accounts, api_keys, device_authorizations, web_sessions
from shared.users.device_authorizations import Requester
from tests.factories import VAULT, ApiUser

MONTH = api_keys.RETENTION


def add(database: Database, user: ApiUser, **columns: object) -> str:
    """Add a key of the user with these columns; return its id."""
    with database.transaction() as session:
        digest = VAULT.digest(api_keys.create_key(session, VAULT, accounts.get_user(session, user.name), "old"))
        session.flush()
        session.execute(update(ApiKey).where(col(ApiKey.digest) == digest).values({"name": "old"} | columns))
        return session.exec(select(ApiKey.id).where(ApiKey.digest == digest)).one()


def create(database: Database, user: ApiUser) -> str:
    """Create a key as its owner does; return its id."""
    with database.transaction() as session:
        return api_keys.create_own_key(session, VAULT, user.id, "new", None, None)[0].id


def remaining(database: Database, ids: list[str]) -> list[str]:
    with database.reading() as session:
        found = session.exec(select(ApiKey.id).where(col(ApiKey.id).in_(ids))).all()
    return [key_id for key_id in ids if key_id in found]


def test_ended_keys_are_deleted_after_a_month(database: Database, user: ApiUser, other_user: ApiUser) -> None:
    old, young = now() - MONTH - timedelta(minutes=1), now() - MONTH + timedelta(minutes=1)
    gone = [
        add(database, user, revoked_at=old),
        add(database, user, expires_at=old),
        add(database, user, revoked_at=old, expires_at=after(60)),
    ]
    stay = [
        add(database, user, revoked_at=young),
        add(database, user, expires_at=young),
        add(database, user, revoked_at=now()),
        add(database, user, created_at=old),
        add(database, user, created_at=old, expires_at=after(60)),
        add(database, other_user, revoked_at=old),
    ]
    new = create(database, user)
    assert remaining(database, gone + stay + [new]) == [*stay, new]
    with database.reading() as session:
        assert len(api_keys.list_in_force(session, user.id)) == 4


def test_user_has_a_limited_number_of_ended_keys(
    database: Database, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_keys, "MAX_ENDED", 3)
    ended = [add(database, user, revoked_at=after(-60 + number)) for number in range(5)]
    for _ in range(4):
        with database.transaction() as session:
            api_keys.revoke_own_key(session, user.id, new := api_keys.list_in_force(session, user.id)[-1].id)
        ended.append(new)
        create(database, user)
    with database.reading() as session:
        found = select(func.count()).select_from(ApiKey).where(ApiKey.user_id == user.id)
        assert session.exec(found.where(col(ApiKey.revoked_at).is_not(None))).one() == 3
    assert remaining(database, ended) == ended[-3:]


def test_new_key_deletes_a_limited_number_of_ended_keys(
    database: Database, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_keys, "MAX_DELETED", 2)
    old = [add(database, user, revoked_at=now() - MONTH) for _ in range(3)]
    create(database, user)
    assert len(remaining(database, old)) == 1


def test_browser_sessions_are_deleted_with_their_key(database: Database, user: ApiUser) -> None:
    key_id = add(database, user)
    with database.transaction() as session:
        web_sessions.begin(session, VAULT, key_id)
        session.execute(update(ApiKey).where(col(ApiKey.id) == key_id).values(revoked_at=now() - MONTH))
    create(database, user)
    with database.reading() as session:
        assert session.exec(select(WebSession)).all() == []
    assert remaining(database, [key_id]) == []


def test_key_of_a_device_login_is_kept(database: Database, user: ApiUser) -> None:
    key_id = add(database, user, revoked_at=now() - MONTH)
    with database.transaction() as session:
        begun = device_authorizations.begin(session, VAULT, Requester())
        device_authorizations.decide(session, VAULT, begun.user_code, key_id, approve=True)
    create(database, user)
    assert remaining(database, [key_id]) == [key_id]
    with database.transaction() as session:
        session.delete(session.exec(select(DeviceAuthorization)).one())
    create(database, user)
    assert remaining(database, [key_id]) == []
