"""API keys on the wire: shown whole once, when made."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, Field, field_validator

from api.schemas.v1.wire_types import Time
from shared.clock import now
from shared.models import ApiKey

LONGEST = timedelta(days=3650)


class KeyCreate(BaseModel):
    """A key to be made: what it is for, and when it ends; null: with the key that is used, or never."""

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^\S(?:[^\x00-\x1f\x7f]*\S)?$")]
    expires_at: AwareDatetime | None = None

    @field_validator("expires_at")
    @classmethod
    def _check_time(cls, at: datetime | None) -> datetime | None:
        if at is not None and not now() < at <= now() + LONGEST:
            raise ValueError(f"a key ends in the future, and within {LONGEST.days} days")
        return at and at.astimezone(UTC)


class KeyInfo(BaseModel):
    """A key, by its first characters."""

    id: str
    name: str
    prefix: str
    created_at: Time
    expires_at: Time | None
    last_used_at: Time | None


class NewKey(KeyInfo):
    """A key that was made now: it is not shown again."""

    key: str


class CurrentKey(BaseModel):
    """The key that came with the request."""

    org_id: str | None
    user_id: str
    id: str
    prefix: str


def show_key(row: ApiKey) -> KeyInfo:
    """A key for its owner."""
    return KeyInfo.model_validate(row, from_attributes=True)


def show_new_key(row: ApiKey, key: str) -> NewKey:
    """A key for its owner, once."""
    return NewKey(**dict(show_key(row)), key=key)
