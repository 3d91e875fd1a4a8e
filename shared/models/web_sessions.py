"""Web sessions of browsers."""

from datetime import datetime

from sqlmodel import Field, SQLModel

from shared.clock import now
from shared.ids import new_id
from shared.models.columns import UtcDateTime


class WebSession(SQLModel, table=True):
    """A browser signed in with a key. Only a keyed digest of its cookie's token is stored (decision 32)."""

    __tablename__ = "web_session"

    id: str = Field(default_factory=new_id, primary_key=True, max_length=32)
    # It grants the access of this key, and none after the key is revoked or expired.
    key_id: str = Field(foreign_key="api_key.id", index=True, max_length=32)
    digest: str = Field(unique=True, max_length=64)
    created_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)
    expires_at: datetime = Field(index=True, sa_type=UtcDateTime)
