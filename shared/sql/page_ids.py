"""The codec of all page ids: a JSON array in URL-safe base64, with the identity of a list and a position in it."""

import json
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Any

from shared.errors import Invalid

FOREIGN_PAGE = "page_id does not belong to this list"


def encode(list_id: Sequence[Any], *position: Any) -> str:
    """Return the page id of a position, whose values JSON can represent."""
    text = json.dumps([*list_id, *position], separators=(",", ":"))
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode(page_id: str, list_id: Sequence[Any], length: int) -> list[Any]:
    """Return the position of a page id, as `length` values. Their types are the client's: the caller checks them.

    Raises:
        Invalid: the page id is malformed, or is another list's.
    """
    try:
        values = json.loads(b64decode(page_id + "=" * (-len(page_id) % 4), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        raise Invalid(FOREIGN_PAGE) from None
    start = len(list_id)
    if not isinstance(values, list) or len(values) != start + length or values[:start] != list(list_id):
        raise Invalid(FOREIGN_PAGE)
    return values[start:]
