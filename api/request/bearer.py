"""Keys as they come in headers."""


def read_bearer(authorization: str | None) -> str | None:
    """The key of `Authorization: Bearer <key>`; None if there is none."""
    scheme, _, key = (authorization or "").partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None
