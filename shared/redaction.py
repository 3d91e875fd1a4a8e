"""Redaction of secrets in texts from agent servers, containers, scripts and LLM providers."""

import json
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

Redact = Callable[[str], str]

HIDDEN = "******"
# Shorter secrets also occur in ordinary words.
MIN_SECRET_LENGTH = 4
# The format of LLM providers' keys: an error may quote a key that its owner has replaced since.
PROVIDER_KEY = re.compile(r"\b(?:sk-|gsk_|xai-|AIza)[A-Za-z0-9_-]{16,}")
# The max work of one function that `redacting` returns: for each secret, the characters of all texts, and for each text
# as many more. It takes a second at most. Sandboxes choose the texts, and a user may have 20,000 secrets.
MAX_WORK, WORK_OF_TEXT = 1_000_000_000, 100
# The max length of all secrets of a text together: a user can store 13 MB, and bring more with the starts of
# conversations. And that of all their forms, of which non-ASCII secrets have long ones.
MAX_SECRETS_LENGTH, MAX_FORMS_LENGTH = 32_000_000, 64_000_000
# Fields that are not redacted: other documents refer to their values, which may contain a short secret by chance.
NAMES = ("id", "key", "kind", "source", "timestamp")


def redacting(secrets: Collection[str]) -> Redact:
    """A function that replaces each secret in a text with asterisks, long secrets before short ones.

    The text as a whole is replaced if the function has exceeded `MAX_WORK`, or if the secrets are too long.
    """
    known = _known_forms(secrets)
    if known is None:
        return lambda _: HIDDEN

    work_left = MAX_WORK

    def redact(text: str) -> str:
        nonlocal work_left
        work_left -= len(known) * (len(text) + WORK_OF_TEXT)
        if work_left < 0:
            return HIDDEN
        for secret in known:
            text = text.replace(secret, HIDDEN)
        return PROVIDER_KEY.sub(HIDDEN, text)

    return redact


def secrets_of_token(token: str) -> list[str]:
    """A git provider's token and, if it is stored as `user:password`, the password, which git sends by itself."""
    return [token, token.partition(":")[2]]


def _known_forms(secrets: Collection[str]) -> list[str] | None:
    """All forms of the secrets, long ones first; None if the secrets or the forms are too long together."""
    if sum(map(len, secrets)) > MAX_SECRETS_LENGTH:
        return None
    forms: set[str] = set()
    length = 0
    for form in (form for secret in secrets for form in _forms(secret)):
        if len(form) >= MIN_SECRET_LENGTH and form not in forms:
            forms.add(form)
            length += len(form)
        if length > MAX_FORMS_LENGTH:
            return None
    return sorted(forms, key=len, reverse=True)


def _forms(secret: str) -> Iterator[str]:
    """Yield a secret as it is and as JSON quotes it, each also with its whitespace collapsed, as in errors' texts."""
    for form in (secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]):
        yield form
        yield " ".join(form.split())


def redact_document(document: Any, redact: Redact) -> Any:
    """The same document with all its texts redacted except ids and the other `NAMES`."""
    if isinstance(document, str):
        return redact(document)
    if isinstance(document, list):
        return [redact_document(item, redact) for item in document]
    if isinstance(document, dict):
        return {name: item if _is_name(name) else redact_document(item, redact) for name, item in document.items()}
    return document


def _is_name(field: Any) -> bool:
    return field in NAMES or str(field).endswith("_id")
