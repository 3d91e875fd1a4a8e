"""Keys for devices: requested by a device, approved by a user elsewhere, issued to the device (RFC 8628)."""

import secrets
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import ColumnElement, func
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from shared.clock import after, now
from shared.crypto import Vault
from shared.errors import Conflict, Invalid, NotFound, Unauthenticated
from shared.models import ApiKey, DeviceAuthorization
from shared.models.users import DeviceStatus
from shared.sql.statements import delete_unlocked, locked
from shared.users import api_keys

LIFE_SECONDS = 600
INTERVAL_SECONDS = 5
# The addition to the interval after an early poll (RFC 8628, 3.5), and the limit of the interval.
SLOWER_SECONDS = 5
MAX_INTERVAL_SECONDS = 60
# The tolerance for network delays: a device that waits for the interval must not receive `slow_down`.
TOLERANCE = timedelta(seconds=1)
# Requests need no authentication. At the limit of pending requests, a batch of those with the oldest polls is deleted.
# Expired requests are deleted after the retention time (decision 38).
MAX_PENDING = 10_000
ROOM = 100
RETENTION = timedelta(days=1)
# No vowels, so that codes contain no words, and no characters that are easily confused.
LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
CODE_LENGTH = 8


class PollError(StrEnum):
    """Error codes in responses to a device."""

    AUTHORIZATION_PENDING = "authorization_pending"
    SLOW_DOWN = "slow_down"
    ACCESS_DENIED = "access_denied"
    EXPIRED_TOKEN = "expired_token"  # noqa: S105 - an error code of the standard
    INVALID_GRANT = "invalid_grant"


@dataclass(frozen=True)
class Requester:
    """The device's own description and its address: shown to the user who decides, and not trustworthy."""

    client: str = ""
    user_agent: str = ""
    address: str = ""


class NewAuthorization(NamedTuple):
    """The codes of a new request, which can't be read later."""

    device_code: str
    user_code: str


@dataclass(frozen=True)
class Polled:
    """The response to a device: a key or an error, and the number of seconds until its next poll."""

    key: str | None = field(default=None, repr=False)
    error: PollError | None = None
    interval: int = INTERVAL_SECONDS


def begin(session: Session, vault: Vault, requester: Requester) -> NewAuthorization:
    """Open a request. If too many are pending, delete those with the oldest polls."""
    _delete_old(session)
    _make_room(session)
    begun = NewAuthorization(secrets.token_urlsafe(32), _new_user_code())
    session.add(
        DeviceAuthorization(
            device_code_digest=vault.digest(begun.device_code),
            user_code_digest=vault.digest(_normal(begun.user_code)),
            client=_printable(requester.client, 100),
            user_agent=_printable(requester.user_agent, 200),
            address=_printable(requester.address, 64),
            interval_seconds=INTERVAL_SECONDS,
            expires_at=after(LIFE_SECONDS),
        )
    )
    session.flush()
    return begun


def find(session: Session, vault: Vault, user_code: str) -> DeviceAuthorization | None:
    """The pending request under that code, as a user typed it."""
    return session.exec(_of_user(vault, user_code)).one_or_none()


def decide(session: Session, vault: Vault, user_code: str, key_id: str, *, approve: bool) -> None:
    """Record the user's decision on a pending request.

    Args:
        user_code: the code as the user typed it.
        key_id: the user's own key, which authorizes the decision.

    Raises:
        NotFound: no request is pending under that code.
        Conflict: it is approved, and the user has the maximum number of keys already.
    """
    if approve:
        api_keys.require_room(session, session.get_one(ApiKey, key_id).user_id)
    row = session.exec(locked(_of_user(vault, user_code))).one_or_none()
    if row is None:
        raise NotFound("device login", _normal(user_code), by="code")
    row.status = DeviceStatus.APPROVED if approve else DeviceStatus.DENIED
    row.approved_with = key_id
    session.add(row)
    session.flush()


def poll(session: Session, vault: Vault, device_code: str) -> Polled:
    """The response to a poll of the device. A request yields one key.

    An error response is no exception: the caller commits the changes that come with it.
    """
    digests = vault.digests(device_code)
    statement = select(DeviceAuthorization).where(col(DeviceAuthorization.device_code_digest).in_(digests))
    row = session.exec(locked(statement)).one_or_none()
    if row is None or row.status == DeviceStatus.USED:
        return Polled(error=PollError.INVALID_GRANT)
    if row.expires_at <= now():
        return Polled(error=PollError.EXPIRED_TOKEN)
    if row.status == DeviceStatus.PENDING:
        return _wait(session, row)
    return _issue_key(session, vault, row) if row.status == DeviceStatus.APPROVED else _denied()


def _wait(session: Session, row: DeviceAuthorization) -> Polled:
    soonest = row.polled_at and row.polled_at + timedelta(seconds=row.interval_seconds) - TOLERANCE
    is_early = soonest is not None and now() < soonest
    if is_early:
        row.interval_seconds = min(row.interval_seconds + SLOWER_SECONDS, MAX_INTERVAL_SECONDS)
    row.polled_at = now()
    session.add(row)
    session.flush()
    return Polled(
        error=PollError.SLOW_DOWN if is_early else PollError.AUTHORIZATION_PENDING, interval=row.interval_seconds
    )


def _issue_key(session: Session, vault: Vault, row: DeviceAuthorization) -> Polled:
    approved_with = session.get_one(ApiKey, row.approved_with)
    name = f"device login {row.client}".strip()[:100]
    try:
        _, key = api_keys.create_own_key(session, vault, approved_with.user_id, name, None, approved_with.id)
    except (Conflict, Invalid, Unauthenticated):
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


def _printable(text: str, max_length: int) -> str:
    return "".join(letter for letter in text if letter.isprintable())[:max_length]


def _normal(user_code: str) -> str:
    return "".join(letter for letter in user_code.upper() if letter in LETTERS)[:CODE_LENGTH]


def _is_open() -> ColumnElement[bool]:
    pending = col(DeviceAuthorization.status) == DeviceStatus.PENDING
    return pending & (col(DeviceAuthorization.expires_at) > now())


def _of_user(vault: Vault, user_code: str) -> SelectOfScalar[DeviceAuthorization]:
    digests = vault.digests(_normal(user_code))
    return select(DeviceAuthorization).where(col(DeviceAuthorization.user_code_digest).in_(digests), _is_open())


def _delete_old(session: Session) -> None:
    old = col(DeviceAuthorization.expires_at) < now() - RETENTION
    delete_unlocked(session, DeviceAuthorization, select(DeviceAuthorization.id).where(old).limit(100))


def _make_room(session: Session) -> None:
    """Delete pending requests with the oldest polls: a device in use polls every few seconds."""
    pending = col(DeviceAuthorization.status) == DeviceStatus.PENDING
    number = session.exec(select(func.count()).select_from(DeviceAuthorization).where(pending)).one()
    if number >= MAX_PENDING:
        last_poll = func.coalesce(col(DeviceAuthorization.polled_at), col(DeviceAuthorization.created_at))
        excess = number - MAX_PENDING + ROOM
        delete_unlocked(
            session,
            DeviceAuthorization,
            select(DeviceAuthorization.id).where(pending).order_by(last_poll).limit(excess),
        )
