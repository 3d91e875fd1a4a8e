"""Secrets are hidden in what others say: agent servers, containers, scripts."""

from collections.abc import Callable, Iterable

Redact = Callable[[str], str]

# Anything shorter is found in ordinary words, too.
SHORTEST_SECRET = 4


def redacting(secrets: Iterable[str]) -> Redact:
    """A function that replaces each of the secrets in a text with asterisks, the longest first."""
    known = sorted({secret for secret in secrets if len(secret) >= SHORTEST_SECRET}, key=len, reverse=True)

    def redact(text: str) -> str:
        for secret in known:
            text = text.replace(secret, "******")
        return text

    return redact
