"""API keys on the wire: only the response that creates a key shows all of it."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, Field, field_validator

from api.schemas.v1.fields import Time
from shared.clock import now
from shared.models import ApiKey

MAX_LIFETIME = timedelta(days=3650)


class KeyCreate(BaseModel):
    """A key to create. Without `expires_at`, it expires with the key of this request, if that one expires."""

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^\S(?:[^\x00-\x1f\x7f]*\S)?$")]
    expires_at: AwareDatetime | None = None

    @field_validator("expires_at")
    @classmethod
    def _check_time(cls, at: datetime | None) -> datetime | None:
        if at is not None and not now() < at <= now() + MAX_LIFETIME:
            raise ValueError(f"a key must expire in the future, and within {MAX_LIFETIME.days} days")
        return at and at.astimezone(UTC)


class KeyInfo(BaseModel):
    """A key, identified by its first characters."""

    id: str
    name: str
    prefix: str
    created_at: Time
    expires_at: Time | None
    last_used_at: Time | None


class NewKey(KeyInfo):
    """A new key. No other response shows it."""

    key: str


class CurrentKey(BaseModel):
    """The key of this request, or the one that the browser's user signed in with."""

    org_id: str | None
    user_id: str
    id: str
    name: str
    prefix: str
    auth_type: Literal["bearer", "cookie"]


def serialize_key(row: ApiKey) -> KeyInfo:
    """Show a key to its owner."""
    return KeyInfo.model_validate(row, from_attributes=True)


def serialize_new_key(row: ApiKey, key: str) -> NewKey:
    """Show a new key to its owner, in full."""
    return NewKey(**dict(serialize_key(row)), key=key)
