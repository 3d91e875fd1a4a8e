"""Device logins on the wire (RFC 8628)."""

from pydantic import BaseModel


class DeviceCodes(BaseModel):
    """The codes that a device shows to its user and polls with; times are in seconds."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    expires_in: int
    interval: int


class DeviceToken(BaseModel):
    """The API key of a device. It is accepted wherever API keys are."""

    access_token: str
    token_type: str = "Bearer"  # noqa: S105 - a term of the standard


class DeviceRefusal(BaseModel):
    """Why the device has no key yet, or gets none; `interval` is in seconds."""

    error: str
    error_description: str
    interval: int
