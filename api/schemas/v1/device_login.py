"""Device logins on the wire (RFC 8628)."""

from pydantic import BaseModel


class DeviceCodes(BaseModel):
    """What a device shows to its user, and asks with; times in seconds."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    expires_in: int
    interval: int


class DeviceToken(BaseModel):
    """The key that a device gets; it goes where any API key goes."""

    access_token: str
    token_type: str = "Bearer"  # noqa: S105 - a word of the standard


class DeviceRefusal(BaseModel):
    """Why there is no key yet, or none at all; `interval` in seconds."""

    error: str
    error_description: str
    interval: int
