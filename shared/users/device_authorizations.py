"""Keys for devices: asked for there, approved by a user elsewhere, handed out once (RFC 8628)."""

import secrets
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import ColumnElement, delete, func
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from shared.clock import after, now
from shared.crypto import Vault
from shared.errors import Conflict, Invalid, NotFound
from shared.models import ApiKey, DeviceAuthorization
from shared.models.device_authorizations import DeviceStatus
from shared.users import api_keys

LIFE_SECONDS = 600
INTERVAL_SECONDS = 5
# What a poll that came too soon adds (RFC 8628, 3.5), and where that ends.
SLOWER_SECONDS = 5
MAX_INTERVAL_SECONDS = 60
# Networks are not clocks: who waits for the interval must not be told to slow down.
TOLERANCE = timedelta(seconds=1)
# Anybody may ask: so many requests may wait for a user's word at a time. Whose device has been silent for longest goes
# first, a few at once, and what is over is forgotten so long after it (decision 38).
MAX_PENDING = 10_000
ROOM = 100
KEPT = timedelta(days=1)
# No vowels, so that no words come out, and nothing that looks like something else.
LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
CODE_LENGTH = 8


class PollError(StrEnum):
    """The words that a device is told."""

    AUTHORIZATION_PENDING = "authorization_pending"
    SLOW_DOWN = "slow_down"
    ACCESS_DENIED = "access_denied"
    EXPIRED_TOKEN = "expired_token"  # noqa: S105 - a word of the standard
    INVALID_GRANT = "invalid_grant"


class Begun(NamedTuple):
    """The codes of a request, the only time they can be read."""

    device_code: str
    user_code: str


@dataclass(frozen=True)
class Polled:
    """What a device is told: a key, or why there is none, and how long to wait before it asks again, in seconds."""

    key: str | None = field(default=None, repr=False)
    error: PollError | None = None
    interval: int = INTERVAL_SECONDS


def begin(session: Session, vault: Vault, client: str) -> Begun:
    """Open a request; where too many are open, forget those whose devices have been silent for longest."""
    _delete_old(session)
    _make_room(session)
    begun = Begun(secrets.token_urlsafe(32), _new_user_code())
    session.add(
        DeviceAuthorization(
            device_code_digest=vault.digest(begun.device_code),
            user_code_digest=vault.digest(_normal(begun.user_code)),
            client=client[:100],
            interval_seconds=INTERVAL_SECONDS,
            expires_at=after(LIFE_SECONDS),
        )
    )
    session.flush()
    return begun


def decide(session: Session, vault: Vault, user_code: str, key_id: str, *, approve: bool) -> None:
    """Take the user's word for it, once.

    Args:
        session: of a transaction.
        vault: digests the code.
        user_code: as the user typed it.
        key_id: the user's own key, by which they say so.
        approve: or deny.

    Raises:
        NotFound: no request is open under that code.
    """
    row = session.exec(_of_user(vault, user_code).with_for_update()).one_or_none()
    if row is None:
        raise NotFound("device login", _normal(user_code), by="code")
    row.status = DeviceStatus.APPROVED if approve else DeviceStatus.DENIED
    row.approved_with = key_id
    session.add(row)
    session.flush()


def poll(session: Session, vault: Vault, device_code: str) -> Polled:
    """What the device is told now; a key is handed out once.

    A refusal is an answer, not an error: what it changes is to be committed.
    """
    digests = vault.digests(device_code)
    statement = select(DeviceAuthorization).where(col(DeviceAuthorization.device_code_digest).in_(digests))
    row = session.exec(statement.with_for_update()).one_or_none()
    if row is None or row.status == DeviceStatus.USED:
        return Polled(error=PollError.INVALID_GRANT)
    if row.expires_at <= now():
        return Polled(error=PollError.EXPIRED_TOKEN)
    if row.status == DeviceStatus.PENDING:
        return _wait(session, row)
    return _hand_out(session, vault, row) if row.status == DeviceStatus.APPROVED else _denied()


def _wait(session: Session, row: DeviceAuthorization) -> Polled:
    soonest = row.polled_at and row.polled_at + timedelta(seconds=row.interval_seconds) - TOLERANCE
    hasty = soonest is not None and now() < soonest
    if hasty:
        row.interval_seconds = min(row.interval_seconds + SLOWER_SECONDS, MAX_INTERVAL_SECONDS)
    row.polled_at = now()
    session.add(row)
    session.flush()
    return Polled(
        error=PollError.SLOW_DOWN if hasty else PollError.AUTHORIZATION_PENDING, interval=row.interval_seconds
    )


def _hand_out(session: Session, vault: Vault, row: DeviceAuthorization) -> Polled:
    approved_with = session.get_one(ApiKey, row.approved_with)
    ended = approved_with.expires_at is not None and approved_with.expires_at <= now()
    if ended or approved_with.revoked_at is not None:
        return _denied()  # whoever approved it may not any more
    name = f"device login {row.client}".strip()[:100]
    try:
        _, key = api_keys.create_own_key(session, vault, approved_with.user_id, name, None, approved_with.id)
    except (Conflict, Invalid):
        return _denied()
    row.status = DeviceStatus.USED
    session.add(row)
    session.flush()
    return Polled(key=key)


def _denied() -> Polled:
    return Polled(error=PollError.ACCESS_DENIED)


def _new_user_code() -> str:
    letters = "".join(secrets.choice(LETTERS) for _ in range(CODE_LENGTH))
    return f"{letters[:4]}-{letters[4:]}"


def _normal(user_code: str) -> str:
    return "".join(letter for letter in user_code.upper() if letter in LETTERS)[:CODE_LENGTH]


def _is_open() -> ColumnElement[bool]:
    pending = col(DeviceAuthorization.status) == DeviceStatus.PENDING
    return pending & (col(DeviceAuthorization.expires_at) > now())


def _of_user(vault: Vault, user_code: str) -> SelectOfScalar[DeviceAuthorization]:
    digests = vault.digests(_normal(user_code))
    return select(DeviceAuthorization).where(col(DeviceAuthorization.user_code_digest).in_(digests), _is_open())


def _delete_old(session: Session) -> None:
    old = col(DeviceAuthorization.expires_at) < now() - KEPT
    _forget(session, select(DeviceAuthorization.id).where(old).limit(100))


def _make_room(session: Session) -> None:
    """Keep those that are asked after: a device that somebody waits at says so every few seconds."""
    pending = col(DeviceAuthorization.status) == DeviceStatus.PENDING
    number = session.exec(select(func.count()).select_from(DeviceAuthorization).where(pending)).one()
    if number >= MAX_PENDING:
        heard = func.coalesce(col(DeviceAuthorization.polled_at), col(DeviceAuthorization.created_at))
        silent = select(DeviceAuthorization.id).where(pending).order_by(heard).limit(number - MAX_PENDING + ROOM)
        _forget(session, silent)


def _forget(session: Session, found: SelectOfScalar[str]) -> None:
    """Remove these, but for those that somebody decides upon at this moment."""
    old = session.exec(found.with_for_update(skip_locked=True)).all()
    session.execute(delete(DeviceAuthorization).where(col(DeviceAuthorization.id).in_(old)))
