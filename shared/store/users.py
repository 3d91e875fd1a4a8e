"""Users and their API keys."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, and_, bindparam, case, literal, or_, update
from sqlalchemy import select as sql_select
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select

from shared.clock import now
from shared.crypto import Vault, new_api_key
from shared.database import Database
from shared.errors import Conflict, NotFound
from shared.models import ApiKey, ListVersion, User
from shared.models.lists import EVERYBODY

PREFIX_LENGTH = 11
# How stale `last_used_at` may be: writing it on every request would make every read a write.
LAST_USE_RESOLUTION = timedelta(minutes=1)


class KeyHolder(NamedTuple):
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


def create_user(session: Session, name: str) -> User:
    """Add a user.

    Raises:
        Conflict: the name is taken.
    """
    if find_user(session, name) is not None:
        raise Conflict(f"there is a user named {name!r} already")
    user = User(name=name)
    session.add(user)
    session.flush()
    return user


def find_user(session: Session, name: str) -> User | None:
    """The user of that name, if there is one."""
    return session.exec(select(User).where(User.name == name)).one_or_none()


def get_user(session: Session, name: str) -> User:
    """The user of that name.

    Raises:
        NotFound: there is none.
    """
    user = find_user(session, name)
    if user is None:
        raise NotFound("user", name)
    return user


def list_users(session: Session) -> list[User]:
    """Every user, oldest first."""
    return list(session.exec(select(User).order_by(col(User.created_at), col(User.id))).all())


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


def authenticate(database: Database, vault: Vault, keys: Sequence[str]) -> list[KeyHolder | None]:
    """Whose each of these keys is; None if it is nobody's, or was revoked or has expired. One query finds all."""
    digests = [vault.digests(key) for key in keys]
    asked = sorted({digest for some in digests for digest in some})
    times = {"now": now(), "stale_before": now() - LAST_USE_RESOLUTION}
    found = database.fetch(_holders_of(_rounded(len(asked))), _numbered(asked) | times)
    holders = {digest: KeyHolder(*holder) for digest, *holder in found}
    return [next((holders[digest] for digest in some if digest in holders), None) for some in digests]


def in_force(vault: Vault, key: str) -> ColumnElement[bool]:
    """What is true of the row of this key, unless it was revoked or has expired."""
    return and_(
        col(ApiKey.digest).in_(vault.digests(key)),
        col(ApiKey.revoked_at).is_(None),
        or_(col(ApiKey.expires_at).is_(None), col(ApiKey.expires_at) > now()),
    )


def is_use_stale(key: ApiKey) -> bool:
    """Whether the key's last use is worth writing down again."""
    return key.last_used_at is None or key.last_used_at < now() - LAST_USE_RESOLUTION


def record_use(session: Session, key_id: str) -> None:
    """Write down that the key was used now."""
    session.execute(update(ApiKey).where(col(ApiKey.id) == key_id).values(last_used_at=now()))


def _rounded(number: int) -> int:
    """Up to a power of two: there are few queries then, and the database keeps the plans of all of them."""
    return int(1 << (number - 1).bit_length())


def _numbered(digests: Sequence[str]) -> dict[str, Any]:
    """The query's parameters, some of them the same."""
    return {f"digest_{number}": digests[number % len(digests)] for number in range(_rounded(len(digests)))}


@cache
def _holders_of(digests: int) -> Select[Any]:
    """One query for every request: no rows are made of it, and nothing about a key outlives the query."""
    own, all_of_them = aliased(ListVersion), aliased(ListVersion)
    version = col(own.version) + col(all_of_them.version)
    last_use = col(ApiKey.last_used_at)
    stale = case((last_use >= bindparam("stale_before"), 0), else_=1)
    shown: list[Any] = [ApiKey.digest, User.id, User.name, ApiKey.id, ApiKey.prefix, stale, version]
    return (
        sql_select(*shown)
        .join(ApiKey, col(ApiKey.user_id) == col(User.id))
        .outerjoin(own, col(own.owner_id) == col(User.id))
        .outerjoin(all_of_them, col(all_of_them.owner_id) == literal(EVERYBODY))
        .where(
            col(ApiKey.digest).in_([bindparam(f"digest_{number}") for number in range(digests)]),
            col(ApiKey.revoked_at).is_(None),
            or_(col(ApiKey.expires_at).is_(None), col(ApiKey.expires_at) > bindparam("now")),
        )
    )
