"""Identifiers: 32 hex digits without dashes, as V1 serialises them (wire contract, section 0)."""

from uuid import UUID, uuid4

from shared.errors import Invalid


def new_id() -> str:
    """A fresh random id."""
    return uuid4().hex


def parse_id(text: str) -> str:
    """The canonical form of a UUID written with or without dashes.

    Raises:
        Invalid: the text is not a UUID.
    """
    try:
        return UUID(text).hex
    except ValueError:
        raise Invalid(f"not a UUID: {text[:64]!r}") from None


def parse_ids(texts: list[str], *, most: int) -> list[str]:
    """Canonical forms of many ids, all malformed ones named in one error.

    Raises:
        Invalid: more than `most` ids, or some are not UUIDs.
    """
    check_count(texts, most=most)
    malformed = [text[:64] for text in texts if not _is_uuid(text)]
    if malformed:
        raise Invalid(f"not UUIDs: {', '.join(map(repr, malformed))}")
    return [UUID(text).hex for text in texts]


def check_count(texts: list[str], *, most: int) -> None:
    """Refuse over-long batches.

    Raises:
        Invalid: there are more than `most`.
    """
    if len(texts) > most:
        raise Invalid(f"at most {most} ids in one request, got {len(texts)}")


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
