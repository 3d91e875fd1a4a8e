"""Identifiers: 32 hex digits without dashes, as V1 serialises them (wire contract, section 0)."""

import re
from uuid import uuid4

from shared.errors import Invalid

# Python's UUID also accepts digits of all scripts, underscores, braces, and dashes in any place.
WRITTEN = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)


def new_id() -> str:
    """A new random id."""
    return uuid4().hex


def parse_id(text: str) -> str:
    """The canonical form of a UUID written with or without dashes.

    Raises:
        Invalid: the text is not a UUID.
    """
    if not WRITTEN.fullmatch(text):
        raise Invalid(f"not a UUID: {text[:64]!r}")
    return text.replace("-", "").lower()


def parse_ids(texts: list[str], *, limit: int) -> list[str]:
    """The canonical forms of many ids. One error names all malformed ones.

    Raises:
        Invalid: more than `limit` ids, or some are not UUIDs.
    """
    check_count(texts, limit=limit)
    malformed = [text[:64] for text in texts if not WRITTEN.fullmatch(text)]
    if malformed:
        raise Invalid(f"not UUIDs: {', '.join(map(repr, malformed))}")
    return [parse_id(text) for text in texts]


def check_count(texts: list[str], *, limit: int) -> None:
    """Reject batches that are too long.

    Raises:
        Invalid: there are more than `limit`.
    """
    if len(texts) > limit:
        raise Invalid(f"at most {limit} ids in one request, got {len(texts)}")
