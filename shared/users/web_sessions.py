"""Browser logins: begun with a key, ended by their owner, by expiry, or together with that key (decision 32)."""

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
from shared.sql.statements import bind_list, locked
from shared.users import api_keys
from shared.users.api_keys import AuthenticatedKey

LIFE_SECONDS = 14 * 24 * 3600
# The limit per key. A login beyond it ends the oldest one.
MAX_SESSIONS = 20


class NewSession(NamedTuple):
    """A new login: its token, which can't be read later, and its lifetime in seconds."""

    token: str
    seconds: int


def begin(session: Session, vault: Vault, key_id: str) -> NewSession:
    """Begin a login with a key, which stays locked until the transaction ends."""
    key = session.exec(locked(select(ApiKey).where(ApiKey.id == key_id), key_share=True)).one()
    _delete_old(session, key_id)
    ends = min(after(LIFE_SECONDS), key.expires_at) if key.expires_at else after(LIFE_SECONDS)
    token = secrets.token_urlsafe(32)
    session.add(WebSession(key_id=key_id, digest=vault.digest(token), expires_at=ends))
    session.flush()
    return NewSession(token, max(0, int((ends - now()).total_seconds())))


def end(session: Session, vault: Vault, token: str) -> None:
    session.execute(delete(WebSession).where(col(WebSession.digest).in_(vault.digests(token))))


def authenticate(database: Database, vault: Vault, tokens: Sequence[str]) -> list[AuthenticatedKey | None]:
    """The user of each token; None if its login has ended or its key was revoked. One query finds all."""
    return api_keys.find_holders(database, vault, tokens, _holders_of)


@cache
def _holders_of(digests: int) -> Select[Any]:
    statement = api_keys.select_holders(WebSession.digest).join(WebSession, col(WebSession.key_id) == col(ApiKey.id))
    matches = col(WebSession.digest).in_(bind_list("digest", digests))
    return statement.where(matches, col(WebSession.expires_at) > bindparam("now"))


def _delete_old(session: Session, key_id: str) -> None:
    """Delete the key's oldest logins to make room for a new one, and a batch of any expired logins."""
    newest = select(WebSession.id).where(WebSession.key_id == key_id).order_by(col(WebSession.created_at).desc())
    expired = select(WebSession.id).where(col(WebSession.expires_at) < now() - timedelta(days=1)).limit(100)
    old = [
        *session.exec(newest.offset(MAX_SESSIONS - 1).limit(100)).all(),
        *session.exec(locked(expired, skip_locked=True)).all(),
    ]
    session.execute(delete(WebSession).where(col(WebSession.id).in_(old)))
