"""Device logins on the wire (RFC 8628)."""

from typing import Any

from pydantic import BaseModel

from shared.users.device_authorizations import INTERVAL_SECONDS, PollError


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


def slow_down(why: str, seconds: int = INTERVAL_SECONDS) -> dict[str, Any]:
    """Return the fields by which an error of this service makes a device poll again; it gives up at other errors."""
    return DeviceRefusal(error=PollError.SLOW_DOWN, error_description=why, interval=seconds).model_dump()
