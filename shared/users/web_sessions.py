"""Logins of browsers: begun with a key, ended by their owner, by time, or with that key (decision 32)."""

import secrets
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Select, bindparam, delete
from sqlmodel import Session, col, select

from shared.clock import after, now
from shared.crypto import Vault
from shared.db.database import Database
from shared.models import ApiKey, WebSession
from shared.sql.prepared import several
from shared.users import api_keys
from shared.users.api_keys import AuthenticatedKey

LIFE_SECONDS = 14 * 24 * 3600
# For one key: whoever signs in more often is signed out where they did so first.
MAX_SESSIONS = 20


class Begun(NamedTuple):
    """A login: its token, the only time it can be read, and for how many seconds it is good."""

    token: str
    seconds: int


def begin(session: Session, vault: Vault, key_id: str) -> Begun:
    """A new login of whoever holds that key.

    Args:
        session: of a transaction; the key is locked until it ends.
        vault: digests the token.
        key_id: the key's id.
    """
    key = session.exec(select(ApiKey).where(ApiKey.id == key_id).with_for_update(key_share=True)).one()
    _delete_old(session, key_id)
    ends = min(after(LIFE_SECONDS), key.expires_at) if key.expires_at else after(LIFE_SECONDS)
    token = secrets.token_urlsafe(32)
    session.add(WebSession(key_id=key_id, digest=vault.digest(token), expires_at=ends))
    session.flush()
    return Begun(token, max(0, int((ends - now()).total_seconds())))


def end(session: Session, vault: Vault, token: str) -> None:
    """Let this token open nothing any more."""
    session.execute(delete(WebSession).where(col(WebSession.digest).in_(vault.digests(token))))


def authenticate(database: Database, vault: Vault, tokens: Sequence[str]) -> list[AuthenticatedKey | None]:
    """Whose each of these tokens is; None if its login is over, or its key was revoked. One query finds all."""
    return api_keys.look_up(database, vault, tokens, _holders_of)


@cache
def _holders_of(digests: int) -> Select[Any]:
    statement = api_keys.select_holders(WebSession.digest).join(WebSession, col(WebSession.key_id) == col(ApiKey.id))
    theirs = col(WebSession.digest).in_(several("digest", digests))
    return statement.where(theirs, col(WebSession.expires_at) > bindparam("now"))


def _delete_old(session: Session, key_id: str) -> None:
    """Make room for one more, and let go of some of anybody's that are over."""
    newest = select(WebSession.id).where(WebSession.key_id == key_id).order_by(col(WebSession.created_at).desc())
    over = select(WebSession.id).where(col(WebSession.expires_at) < now() - timedelta(days=1)).limit(100)
    old = [
        *session.exec(newest.offset(MAX_SESSIONS - 1).limit(100)).all(),
        *session.exec(over.with_for_update(skip_locked=True)).all(),
    ]
    session.execute(delete(WebSession).where(col(WebSession.id).in_(old)))
