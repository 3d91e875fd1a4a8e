"""Identifiers: 32 hex digits without dashes, as V1 serialises them (wire contract, section 0)."""

import re
from uuid import uuid4

from shared.errors import Invalid

# Python takes digits of all scripts, underscores, braces and dashes anywhere for parts of a UUID, too.
WRITTEN = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)


def new_id() -> str:
    """A fresh random id."""
    return uuid4().hex


def parse_id(text: str) -> str:
    """The canonical form of a UUID written with or without dashes.

    Raises:
        Invalid: the text is not a UUID.
    """
    if not WRITTEN.fullmatch(text):
        raise Invalid(f"not a UUID: {text[:64]!r}")
    return text.replace("-", "").lower()


def parse_ids(texts: list[str], *, most: int) -> list[str]:
    """Canonical forms of many ids, all malformed ones named in one error.

    Raises:
        Invalid: more than `most` ids, or some are not UUIDs.
    """
    check_count(texts, most=most)
    malformed = [text[:64] for text in texts if not WRITTEN.fullmatch(text)]
    if malformed:
        raise Invalid(f"not UUIDs: {', '.join(map(repr, malformed))}")
    return [parse_id(text) for text in texts]


def check_count(texts: list[str], *, most: int) -> None:
    """Refuse over-long batches.

    Raises:
        Invalid: there are more than `most`.
    """
    if len(texts) > most:
        raise Invalid(f"at most {most} ids in one request, got {len(texts)}")
