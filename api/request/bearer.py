"""API keys in headers."""


def read_bearer(authorization: str | None) -> str | None:
    """Return the key of `Authorization: Bearer <key>`, or None without one."""
    scheme, _, key = (authorization or "").partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None
