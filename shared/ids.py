"""Identifiers: 32 hex digits without dashes, as V1 serialises them (wire contract, section 0)."""

import re
from uuid import UUID, uuid4

from shared.errors import Invalid

# Python's UUID also accepts digits of all scripts, underscores, braces, and dashes in any place.
WRITTEN = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
# The limit of ids in one request.
MAX_IDS = 100


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


def spellings(text: str) -> tuple[str, ...]:
    """The text as it is; if it is a UUID, also in lower case with dashes and without."""
    if not WRITTEN.fullmatch(text):
        return (text,)
    return (text, str(UUID(text)), UUID(text).hex)


def parse_ids(texts: list[str]) -> list[str]:
    """The canonical forms of many ids. One error names all malformed ones.

    Raises:
        Invalid: more than `MAX_IDS`, or some are not UUIDs.
    """
    check_count(texts)
    malformed = [text[:64] for text in texts if not WRITTEN.fullmatch(text)]
    if malformed:
        raise Invalid(f"not UUIDs: {', '.join(map(repr, malformed))}")
    return [parse_id(text) for text in texts]


def find_ids(texts: list[str]) -> list[str]:
    """The canonical forms of many ids. A text that is not a UUID becomes an empty text, which is no row's id.

    Raises:
        Invalid: more than `MAX_IDS`.
    """
    check_count(texts)
    return [parse_id(text) if WRITTEN.fullmatch(text) else "" for text in texts]


def check_count(texts: list[str]) -> None:
    """Reject batches that are too long.

    Raises:
        Invalid: there are more than `MAX_IDS`.
    """
    if len(texts) > MAX_IDS:
        raise Invalid(f"at most {MAX_IDS} ids in one request, got {len(texts)}")
