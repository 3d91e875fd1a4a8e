"""Requests of devices for a key of their own (RFC 8628)."""

from datetime import datetime
from enum import StrEnum

from sqlmodel import Field, SQLModel

from shared.clock import now
from shared.ids import new_id
from shared.models.columns import UtcDateTime, one_of


class DeviceStatus(StrEnum):
    """The status of a request."""

    PENDING = "PENDING"
    APPROVED = "APPROVED"
    DENIED = "DENIED"
    # The device has received its key.
    USED = "USED"


class DeviceAuthorization(SQLModel, table=True):
    """A device that waits for its user's approval. Only keyed digests of both codes are stored."""

    __tablename__ = "device_authorization"
    __table_args__ = (one_of("status", DeviceStatus),)

    id: str = Field(default_factory=new_id, primary_key=True, max_length=32)
    device_code_digest: str = Field(unique=True, max_length=64)
    user_code_digest: str = Field(unique=True, max_length=64)
    # The name that the device sends; empty without one.
    client: str = Field(max_length=100)
    status: str = Field(default=DeviceStatus.PENDING, max_length=16)
    # The API key of the user who approved it.
    approved_with: str | None = Field(default=None, foreign_key="api_key.id", max_length=32)
    interval_seconds: int
    polled_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    created_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)
    expires_at: datetime = Field(index=True, sa_type=UtcDateTime)
