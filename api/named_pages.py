"""Pages of what has names and no table."""

import base64
import binascii
import json
from collections.abc import Sequence

from shared.errors import Invalid


def page_of_names(kind: str, names: Sequence[str], page_id: str | None, limit: int) -> tuple[list[str], str | None]:
    """Some of the sorted names, and the id of the page after them.

    Args:
        kind: which list; a page id of another one is refused.

    Raises:
        Invalid: the page id is not one of this list's.
    """
    last = "" if page_id is None else _decode(kind, page_id)
    rest = [name for name in names if name > last]
    return rest[:limit], _encode(kind, rest[limit - 1]) if len(rest) > limit else None


def _encode(kind: str, last: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([kind, last]).encode()).decode().rstrip("=")


def _decode(kind: str, page_id: str) -> str:
    try:
        known, last = json.loads(base64.urlsafe_b64decode(page_id + "=" * (-len(page_id) % 4)))
        if known != kind or not isinstance(last, str):
            raise ValueError("another list's page")
    except (ValueError, TypeError, RecursionError, binascii.Error, UnicodeError):
        raise Invalid("page_id is not one that this list gave out") from None
    return last
