"""URLs made from settings."""


def in_url(host: str) -> str:
    """Return a host as it appears in a URL: an IPv6 address has brackets there."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
