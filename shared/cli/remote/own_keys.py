"""The caller's own API keys, through the service."""

from datetime import datetime
from typing import Any

from shared.cli.remote.service import opened
from shared.errors import NotFound

PREFIX_LENGTH = 11


def create(name: str, expires_at: datetime | None) -> str:
    """Create a key, which expires no later than the key that the command uses."""
    with opened() as service:
        body = {"name": name, "expires_at": expires_at and expires_at.isoformat()}
        return str(service.post("/api/keys", body)["key"])


def list_in_force() -> list[dict[str, Any]]:
    """The caller's valid keys, oldest first."""
    with opened() as service:
        keys: list[dict[str, Any]] = service.get("/api/keys")
        return keys


def revoke(prefix: str) -> int:
    """Revoke the keys with that prefix.

    Returns:
        The number of keys revoked by this call.

    Raises:
        NotFound: no valid key of the caller has that prefix.
    """
    found = [key["id"] for key in list_in_force() if key["prefix"] == prefix[:PREFIX_LENGTH]]
    if not found:
        raise NotFound("key of yours", prefix[:PREFIX_LENGTH], by="prefix")
    with opened() as service:
        for key_id in found:
            service.delete(f"/api/keys/{key_id}")
    return len(found)
