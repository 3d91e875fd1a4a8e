"""API keys of users: creation, revocation and authentication."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, and_, bindparam, case, delete, func, literal, or_, update
from sqlalchemy import select as sql_select
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select

from shared.clock import now
from shared.crypto import Vault, new_api_key
from shared.db.database import Database
from shared.errors import Conflict, Invalid, NotFound, Unauthenticated
from shared.models import ApiKey, DeviceAuthorization, ListVersion, User, WebSession
from shared.models.change_feed import ALL_OWNERS
from shared.models.columns import UtcDateTime
from shared.sql.statements import bind, bind_list, bind_list_values, bind_values, locked, rounded

PREFIX_LENGTH = 11
MAX_KEYS = 100
# How long a key is kept after its end, and how many ended keys of a user are kept: the newest ones.
RETENTION = timedelta(days=30)
MAX_ENDED = 100
# The maximum number of ended keys that the creation of a key deletes.
MAX_DELETED = 20
# The maximum age of `last_used_at`: updating it on every request would make every read a write.
LAST_USE_RESOLUTION = timedelta(minutes=1)
USED = update(ApiKey).where(col(ApiKey.id) == bind("key_id"))
USE = USED.values(last_used_at=bind("now")).returning(col(ApiKey.id))


class AuthenticatedKey(NamedTuple):
    """An authenticated user and the key of the request.

    `use_is_stale`: the recorded last use is due for an update. `list_version` differs after each change of the user's
    lists.
    """

    id: str
    name: str
    key_id: str
    key_prefix: str
    use_is_stale: int
    list_version: str


def create_key(session: Session, vault: Vault, user: User, name: str, expires_at: datetime | None = None) -> str:
    """Create a key for the user and return it. The key can't be read later."""
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
    """Revoke the keys with that prefix.

    Returns:
        The number of keys revoked by this call.
    """
    keys = session.exec(select(ApiKey).where(ApiKey.prefix == prefix[:PREFIX_LENGTH], col(ApiKey.revoked_at).is_(None)))
    revoked = list(keys.all())
    for key in revoked:
        key.revoked_at = now()
    return len(revoked)


def list_in_force(session: Session, user_id: str) -> list[ApiKey]:
    """The user's keys that are neither revoked nor expired, oldest first."""
    statement = select(ApiKey).where(ApiKey.user_id == user_id, *is_in_force())
    return list(session.exec(statement.order_by(col(ApiKey.created_at), col(ApiKey.id))).all())


def find_in_force(session: Session, user_id: str, key_id: str) -> ApiKey | None:
    """The user's valid key with that id, or None."""
    return next((row for row in list_in_force(session, user_id) if row.id == key_id), None)


def create_own_key(
    session: Session, vault: Vault, user_id: str, name: str, expires_at: datetime | None, made_with: str | None
) -> tuple[ApiKey, str]:
    """Create a key at its owner's request.

    Args:
        session: a transaction; the user is locked until it ends.
        expires_at: the time of expiry; None: the expiry of the key `made_with`, or none.
        made_with: the id of the key that authenticated the request, or None.

    Returns:
        The row, and the key, which can't be read later.

    Raises:
        Conflict: the user has the maximum number of keys already.
        Invalid: the new key would outlive the key `made_with`: a stolen key must not be prolonged.
        NotFound: the user does not exist.
        Unauthenticated: the key `made_with` has expired or was revoked since the request was authenticated.
    """
    user = session.exec(locked(select(User).where(User.id == user_id), key_share=True)).one_or_none()
    if user is None:
        raise NotFound("user", user_id)
    require_room(session, user_id)
    ends = _require_in_force(session, made_with).expires_at if made_with else None
    if ends and expires_at and expires_at > ends:
        raise Invalid("a key can't outlive the key that creates it")
    key = create_key(session, vault, user, name, expires_at or ends)
    session.flush()
    _delete_ended(session, user_id)
    row = session.exec(select(ApiKey).where(ApiKey.digest == vault.digest(key))).one()
    return row, key


def require_room(session: Session, user_id: str) -> None:
    """Check that the user may have one more key.

    Raises:
        Conflict: the user has the maximum number of keys already.
    """
    if len(list_in_force(session, user_id)) >= MAX_KEYS:
        raise Conflict(f"a user can have at most {MAX_KEYS} keys: revoke one first")


def revoke_own_key(session: Session, user_id: str, key_id: str) -> None:
    """Revoke one of the user's keys.

    Raises:
        NotFound: the user has no valid key with that id.
    """
    row = find_in_force(session, user_id, key_id)
    if row is None:
        raise NotFound("key", key_id)
    row.revoked_at = now()
    session.add(row)


def authenticate(database: Database, vault: Vault, keys: Sequence[str]) -> list[AuthenticatedKey | None]:
    """The user of each key; None for an unknown, revoked or expired key. One query finds all."""
    return find_holders(database, vault, keys, _holders_of)


def find_holders(
    database: Database, vault: Vault, texts: Sequence[str], holders_of: Callable[[int], Select[Any]]
) -> list[AuthenticatedKey | None]:
    """The user of each text, found by its digests. `holders_of` returns the query for a number of digests."""
    found = find_by_keys(database, vault, texts, holders_of, **times())
    return [AuthenticatedKey(*rows[0]) if rows else None for rows in found]


def find_by_keys(
    database: Database, vault: Vault, keys: Sequence[str], select_of: Callable[[int], Any], **values: Any
) -> list[list[Sequence[Any]]]:
    """The rows of each key. One query finds all.

    Args:
        select_of: returns the query for a number of digests, which are its parameters `digest`. Its first column is the
            digest; it is removed from the rows.
        values: the values of the query's other parameters.
    """
    digests = [vault.digests(key) for key in keys]
    wanted = sorted({digest for of_key in digests for digest in of_key})
    found = defaultdict[str, list[Sequence[Any]]](list)
    for digest, *columns in database.fetch(
        select_of(rounded(len(wanted))), bind_list_values("digest", wanted) | values
    ):
        found[digest].append(columns)
    return [[row for digest in of_key for row in found.get(digest, ())] for of_key in digests]


def times() -> dict[str, Any]:
    """The parameters of `select_holders` now."""
    return {"now": now(), "stale_before": now() - LAST_USE_RESOLUTION}


def record_use(database: Database, key_id: str) -> None:
    database.execute_and_commit(USE, bind_values(key_id=key_id, now=now()))


def is_in_force(at: Any = None) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """The conditions of a key that is valid at a time, or now. The time may be a bind parameter."""
    ends = col(ApiKey.expires_at)
    return col(ApiKey.revoked_at).is_(None), or_(ends.is_(None), ends > (now() if at is None else at))


def _require_in_force(session: Session, key_id: str) -> ApiKey:
    """Return a key, locked: a revocation waits until the transaction ends, or this call waits for the revocation."""
    found = select(ApiKey).where(ApiKey.id == key_id, *is_in_force())
    row: ApiKey | None = session.exec(locked(found, key_share=True)).one_or_none()
    if row is None:
        raise Unauthenticated("the API key has expired or was revoked")
    return row


def _delete_ended(session: Session, user_id: str) -> None:
    """Delete the user's oldest revoked and expired keys beyond the limits, with their browser sessions.

    A key that a device login refers to is left to a later call: the login's row is deleted a day after its expiry.
    """
    ended_at = func.coalesce(col(ApiKey.revoked_at), col(ApiKey.expires_at), type_=UtcDateTime())
    named = select(DeviceAuthorization.id).where(DeviceAuthorization.approved_with == ApiKey.id).exists()
    ended = select(ApiKey.id).where(ApiKey.user_id == user_id, ~and_(*is_in_force()))
    newest = ended.order_by(ended_at.desc(), col(ApiKey.id)).limit(MAX_ENDED)
    old = or_(ended_at <= now() - RETENTION, col(ApiKey.id).not_in(newest.scalar_subquery()))
    found = locked(ended.where(old, ~named).limit(MAX_DELETED), skip_locked=True)
    if ids := session.exec(found).all():
        session.execute(delete(WebSession).where(col(WebSession.key_id).in_(ids)))
        session.execute(delete(ApiKey).where(col(ApiKey.id).in_(ids)).execution_options(synchronize_session=False))


def select_holders(digest: Any) -> Select[Any]:
    """The query for the columns of `AuthenticatedKey` of all valid keys, with `digest` as the first column.

    The query runs for every request. No model instances are created, and no result about a key is cached.
    """
    own, common = aliased(ListVersion), aliased(ListVersion)
    # A user whose lists have never changed has no row.
    version = func.coalesce(col(own.version), "") + func.coalesce(col(common.version), "")
    last_use = col(ApiKey.last_used_at)
    stale = case((last_use >= bindparam("stale_before"), 0), else_=1)
    shown: list[Any] = [digest, User.id, User.name, ApiKey.id, ApiKey.prefix, stale, version]
    return (
        sql_select(*shown)
        .select_from(User)
        .join(ApiKey, col(ApiKey.user_id) == col(User.id))
        .outerjoin(own, col(own.owner_id) == col(User.id))
        .outerjoin(common, col(common.owner_id) == literal(ALL_OWNERS))
        .where(*is_in_force(bindparam("now")))
    )


@cache
def _holders_of(digests: int) -> Select[Any]:
    return select_holders(ApiKey.digest).where(col(ApiKey.digest).in_(bind_list("digest", digests)))
