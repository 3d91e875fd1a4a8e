"""Users and their API keys."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, and_, bindparam, case, literal, or_, update
from sqlalchemy import select as sql_select
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select

from shared.clock import now
from shared.crypto import Vault, new_api_key
from shared.db.database import Database
from shared.errors import Conflict, Invalid, NotFound
from shared.models import ApiKey, ListVersion, User
from shared.models.list_version import EVERYBODY
from shared.sql.prepared import give, give_several, given, rounded, several

PREFIX_LENGTH = 11
MAX_KEYS = 100
# How stale `last_used_at` may be: writing it on every request would make every read a write.
LAST_USE_RESOLUTION = timedelta(minutes=1)
USED = update(ApiKey).where(col(ApiKey.id) == given("key_id"))
USE = USED.values(last_used_at=given("now")).returning(col(ApiKey.id))


class AuthenticatedKey(NamedTuple):
    """A user whose key was presented, and that key.

    `use_is_stale`: its last use is worth writing down again. `lists_version` is another text after each change of what
    the user's lists show; None if nothing can be said about that.
    """

    id: str
    name: str
    key_id: str
    key_prefix: str
    use_is_stale: int
    lists_version: str | None


def create_key(session: Session, vault: Vault, user: User, name: str, expires_at: datetime | None = None) -> str:
    """A new key for the user: the only time it can be read."""
    key = new_api_key()
    row = ApiKey(
        user_id=user.id,
        name=name,
        prefix=key[:PREFIX_LENGTH],
        digest=vault.digest(key),
        expires_at=expires_at,
    )
    session.add(row)
    return key


def list_keys(session: Session, user: User) -> list[ApiKey]:
    """The user's keys, oldest first."""
    return list(session.exec(select(ApiKey).where(ApiKey.user_id == user.id).order_by(col(ApiKey.created_at))).all())


def revoke_key(session: Session, prefix: str) -> int:
    """Revoke the keys that begin so.

    Returns:
        How many were revoked now.
    """
    keys = session.exec(select(ApiKey).where(ApiKey.prefix == prefix[:PREFIX_LENGTH], col(ApiKey.revoked_at).is_(None)))
    revoked = list(keys.all())
    for key in revoked:
        key.revoked_at = now()
    return len(revoked)


def list_in_force(session: Session, user_id: str) -> list[ApiKey]:
    """The user's keys that open something, oldest first."""
    statement = select(ApiKey).where(ApiKey.user_id == user_id, *_is_in_force())
    return list(session.exec(statement.order_by(col(ApiKey.created_at), col(ApiKey.id))).all())


def create_own_key(
    session: Session, vault: Vault, user_id: str, name: str, expires_at: datetime | None, made_with: str | None
) -> tuple[ApiKey, str]:
    """A new key that its owner asks for, and the only time it can be read.

    Args:
        session: of a transaction; the user is locked until it ends.
        vault: digests it.
        user_id: whose key.
        name: what it is for.
        expires_at: when it ends; None: with the key it is made with, or never.
        made_with: the id of the key that the user asks with, if it is one.

    Raises:
        Conflict: the user has as many as they may have.
        Invalid: it would outlive the key it is made with: who finds that one must not make it last.
        NotFound: there is no such user.
    """
    user = session.exec(select(User).where(User.id == user_id).with_for_update(key_share=True)).one_or_none()
    if user is None:
        raise NotFound("user", user_id)
    if len(list_in_force(session, user_id)) >= MAX_KEYS:
        raise Conflict(f"at most {MAX_KEYS} keys are kept for a user: revoke one first")
    ends = session.get_one(ApiKey, made_with).expires_at if made_with else None
    if ends and expires_at and expires_at > ends:
        raise Invalid("a key can't outlive the one that it is made with")
    key = create_key(session, vault, user, name, expires_at or ends)
    session.flush()
    row = session.exec(select(ApiKey).where(ApiKey.digest == vault.digest(key))).one()
    return row, key


def revoke_own_key(session: Session, user_id: str, key_id: str) -> None:
    """Let one of the user's keys open nothing any more.

    Raises:
        NotFound: the user has none in force with that id.
    """
    row = next((row for row in list_in_force(session, user_id) if row.id == key_id), None)
    if row is None:
        raise NotFound("key", key_id)
    row.revoked_at = now()
    session.add(row)


def authenticate(database: Database, vault: Vault, keys: Sequence[str]) -> list[AuthenticatedKey | None]:
    """Whose each of these keys is; None if it is nobody's, or was revoked or has expired. One query finds all."""
    return look_up(database, vault, keys, _holders_of)


def look_up(
    database: Database, vault: Vault, texts: Sequence[str], holders_of: Callable[[int], Select[Any]]
) -> list[AuthenticatedKey | None]:
    """Whose each of these texts is, by their digests, with the query for so many that `holders_of` gives."""
    digests = [vault.digests(text) for text in texts]
    asked = sorted({digest for some in digests for digest in some})
    times = {"now": now(), "stale_before": now() - LAST_USE_RESOLUTION}
    found = database.fetch(holders_of(rounded(len(asked))), give_several("digest", asked) | times)
    holders = {digest: AuthenticatedKey(*holder) for digest, *holder in found}
    return [next((holders[digest] for digest in some if digest in holders), None) for some in digests]


def in_force(vault: Vault, key: str) -> ColumnElement[bool]:
    """What is true of the row of this key, unless it was revoked or has expired."""
    return and_(col(ApiKey.digest).in_(vault.digests(key)), *_is_in_force())


def is_use_stale(key: ApiKey) -> bool:
    """Whether the key's last use is worth writing down again."""
    return key.last_used_at is None or key.last_used_at < now() - LAST_USE_RESOLUTION


def record_use(database: Database, key_id: str) -> None:
    """Write down that the key was used now."""
    database.execute_and_commit(USE, give(key_id=key_id, now=now()))


def _is_in_force() -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    ends = col(ApiKey.expires_at)
    return col(ApiKey.revoked_at).is_(None), or_(ends.is_(None), ends > now())


def select_holders(digest: Any) -> Select[Any]:
    """The users whose keys are in force, with what is asked of them; `digest` comes first in each row.

    One query for every request: no rows are made of it, and nothing about a key outlives the query.
    """
    own, all_of_them = aliased(ListVersion), aliased(ListVersion)
    version = col(own.version) + col(all_of_them.version)
    last_use = col(ApiKey.last_used_at)
    stale = case((last_use >= bindparam("stale_before"), 0), else_=1)
    shown: list[Any] = [digest, User.id, User.name, ApiKey.id, ApiKey.prefix, stale, version]
    return (
        sql_select(*shown)
        .select_from(User)
        .join(ApiKey, col(ApiKey.user_id) == col(User.id))
        .outerjoin(own, col(own.owner_id) == col(User.id))
        .outerjoin(all_of_them, col(all_of_them.owner_id) == literal(EVERYBODY))
        .where(
            col(ApiKey.revoked_at).is_(None),
            or_(col(ApiKey.expires_at).is_(None), col(ApiKey.expires_at) > bindparam("now")),
        )
    )


@cache
def _holders_of(digests: int) -> Select[Any]:
    return select_holders(ApiKey.digest).where(col(ApiKey.digest).in_(several("digest", digests)))
