"""Users, and the data stored for each of them."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, Integer, UniqueConstraint
from sqlmodel import Field, SQLModel

from shared.clock import now
from shared.ids import new_id
from shared.models.columns import Json, UtcDateTime, one_of


class Role(StrEnum):
    """What a user may do besides using what is theirs."""

    USER = "user"
    # Sees and changes what all users have, at `/admin`.
    ADMIN = "admin"


class User(SQLModel, table=True):
    """An owner of sandboxes, conversations, settings and secrets."""

    __tablename__ = "user"

    id: str = Field(default_factory=new_id, primary_key=True, max_length=32)
    name: str = Field(unique=True, max_length=100)
    # One of `Role`. It has no CHECK, because SQLite would rebuild the table to add one.
    role: str = Field(default=Role.USER, max_length=16)
    created_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)


class AuditEntry(SQLModel, table=True):
    """One action of an operator. `shared.users.audit` removes old entries."""

    __tablename__ = "audit_entry"

    id: int | None = Field(default=None, primary_key=True, sa_type=BigInteger().with_variant(Integer, "sqlite"))
    at: datetime = Field(default_factory=now, index=True, sa_type=UtcDateTime)
    # The name of the user, and the prefix of the key that the user signed in with; empty: the command line. No foreign
    # key to the user: its check would lock the user's row after others, against the lock order (`shared.sql.locks`).
    actor: str | None = Field(default=None, max_length=100)
    key_prefix: str | None = Field(default=None, max_length=16)
    action: str = Field(max_length=32)
    # A sandbox's id, or the name of a node or of a user.
    subject: str = Field(max_length=100)


class StoredUsage(SQLModel, table=True):
    """How much is stored for a user. Each transaction that changes it locks this row last, except for the change feed.

    No foreign key to the user: its check would lock the user's row after a conversation's row, against the lock order
    (`shared.sql.locks`).
    """

    __tablename__ = "stored_usage"

    owner_id: str = Field(primary_key=True, max_length=32)
    # Conversations that are not deleted.
    conversations: int = Field(default=0, sa_type=BigInteger)
    # Events of all conversations, until the events are removed.
    events: int = Field(default=0, sa_type=BigInteger)
    event_bytes: int = Field(default=0, sa_type=BigInteger)


class ApiKey(SQLModel, table=True):
    """An API key. It is shown at its creation only: the database has its prefix and its keyed digest."""

    __tablename__ = "api_key"

    id: str = Field(default_factory=new_id, primary_key=True, max_length=32)
    user_id: str = Field(foreign_key="user.id", index=True, max_length=32)
    name: str = Field(max_length=100)
    prefix: str = Field(max_length=16, index=True)
    digest: str = Field(unique=True, max_length=64)
    created_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)
    expires_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    revoked_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    last_used_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class UserSettings(SQLModel, table=True):
    """A user's settings: the open part as JSON, the secret part as one encrypted JSON document."""

    __tablename__ = "settings"

    user_id: str = Field(foreign_key="user.id", primary_key=True, max_length=32)
    document: dict[str, Any] = Field(sa_type=Json)
    sealed: str
    updated_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)


class Secret(SQLModel, table=True):
    """A custom secret for the user's conversations."""

    __tablename__ = "secret"
    __table_args__ = (UniqueConstraint("user_id", "name"),)

    id: str = Field(default_factory=new_id, primary_key=True, max_length=32)
    user_id: str = Field(foreign_key="user.id", max_length=32)
    name: str = Field(max_length=256)
    description: str | None = None
    ciphertext: str
    updated_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)


class ProviderToken(SQLModel, table=True):
    """A token for a git provider."""

    __tablename__ = "provider_token"
    __table_args__ = (UniqueConstraint("user_id", "provider"),)

    id: str = Field(default_factory=new_id, primary_key=True, max_length=32)
    user_id: str = Field(foreign_key="user.id", max_length=32)
    provider: str = Field(max_length=32)
    # Empty: there is a host, but no token yet.
    ciphertext: str | None = None
    # The user's id at the provider.
    account_id: str | None = Field(default=None, max_length=256)
    host: str | None = Field(default=None, max_length=256)
    updated_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)


class WebSession(SQLModel, table=True):
    """A browser signed in with a key. Only a keyed digest of its cookie's token is stored (decision 32)."""

    __tablename__ = "web_session"

    id: str = Field(default_factory=new_id, primary_key=True, max_length=32)
    # The session grants the access of this key, and none after the key is revoked or expired.
    key_id: str = Field(foreign_key="api_key.id", index=True, max_length=32)
    digest: str = Field(unique=True, max_length=64)
    created_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)
    expires_at: datetime = Field(index=True, sa_type=UtcDateTime)


class DeviceStatus(StrEnum):
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
    # The name that the device sends; empty if it sends none.
    client: str = Field(max_length=100)
    # The user agent that the device sends, and the address that it sends from; empty if none. Shown to the user.
    user_agent: str = Field(default="", max_length=200)
    address: str = Field(default="", max_length=64)
    status: str = Field(default=DeviceStatus.PENDING, max_length=16)
    # The API key of the user who approved it.
    approved_with: str | None = Field(default=None, foreign_key="api_key.id", max_length=32)
    interval_seconds: int
    polled_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    created_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)
    expires_at: datetime = Field(index=True, sa_type=UtcDateTime)
