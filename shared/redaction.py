"""Secrets are hidden in what others say: agent servers, containers, scripts, LLM providers."""

import re
from collections.abc import Callable, Iterable
from typing import Any

Redact = Callable[[str], str]

HIDDEN = "******"
# Anything shorter is found in ordinary words, too.
SHORTEST_SECRET = 4
# What keys of LLM providers look like: an error may quote one that its owner has replaced since.
PROVIDER_KEY = re.compile(r"\b(?:sk-|gsk_|xai-|AIza)[A-Za-z0-9_-]{16,}")
# Of a document: what other documents refer to. A short secret may be a part of it.
NAMES = ("id", "key", "kind", "source", "timestamp")


def redacting(secrets: Iterable[str]) -> Redact:
    """A function that replaces each of the secrets in a text with asterisks, the longest first."""
    known = sorted({secret for secret in secrets if len(secret) >= SHORTEST_SECRET}, key=len, reverse=True)

    def redact(text: str) -> str:
        for secret in known:
            text = text.replace(secret, HIDDEN)
        return PROVIDER_KEY.sub(HIDDEN, text)

    return redact


def redact_document(document: Any, redact: Redact) -> Any:
    """The same document with all its texts redacted, but for ids and the like."""
    if isinstance(document, str):
        return redact(document)
    if isinstance(document, list):
        return [redact_document(item, redact) for item in document]
    if isinstance(document, dict):
        return {name: item if _is_name(name) else redact_document(item, redact) for name, item in document.items()}
    return document


def _is_name(field: Any) -> bool:
    return field in NAMES or str(field).endswith("_id")
