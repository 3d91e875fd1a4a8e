"""Users and their API keys."""

from datetime import datetime, timedelta

from sqlalchemy import or_, update
from sqlmodel import Session, col, select

from shared.clock import now
from shared.crypto import Vault, new_api_key
from shared.errors import Conflict, NotFound, Unauthenticated
from shared.models import ApiKey, User

PREFIX_LENGTH = 11
# How stale `last_used_at` may be: writing it on every request would make every read a write.
LAST_USE_RESOLUTION = timedelta(minutes=1)


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


def authenticate(session: Session, vault: Vault, key: str) -> tuple[User, ApiKey]:
    """Whose key this is.

    Raises:
        Unauthenticated: nobody's, or it was revoked or has expired.
    """
    statement = (
        select(User, ApiKey)
        .join(ApiKey, col(ApiKey.user_id) == col(User.id))
        .where(
            col(ApiKey.digest).in_(vault.digests(key)),
            col(ApiKey.revoked_at).is_(None),
            or_(col(ApiKey.expires_at).is_(None), col(ApiKey.expires_at) > now()),
        )
    )
    found = session.exec(statement).first()
    if found is None:
        raise Unauthenticated("unknown, revoked or expired API key")
    return found[0], found[1]


def is_use_stale(key: ApiKey) -> bool:
    """Whether the key's last use is worth writing down again."""
    return key.last_used_at is None or key.last_used_at < now() - LAST_USE_RESOLUTION


def record_use(session: Session, key_id: str) -> None:
    """Write down that the key was used now."""
    session.execute(update(ApiKey).where(col(ApiKey.id) == key_id).values(last_used_at=now()))
