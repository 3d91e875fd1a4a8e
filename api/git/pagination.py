"""Page ids of lists that a provider keeps: its own place in the list, and the size of the pages it is counted in."""

import base64
import binascii
import json
from typing import Any

from api.git.provider import FOREIGN_PAGE, Window
from shared.errors import Invalid

OTHER_SIZE = "page_id was given out for another limit: pages of this list all have one"


def open_window(kind: str, page_id: str | None, limit: int) -> Window:
    """The part of a list that is asked for.

    Args:
        kind: which list; a page of another one is refused.
        page_id: as it was given out; None: the first page.
        limit: the size of pages.

    Raises:
        Invalid: the page id is not one of this list's, or of another size.
    """
    if page_id is None:
        return Window(limit)
    try:
        known, size, start = json.loads(base64.urlsafe_b64decode(page_id + "=" * (-len(page_id) % 4)))
    except (ValueError, TypeError, RecursionError, binascii.Error, UnicodeError):
        raise Invalid(FOREIGN_PAGE) from None
    if known != kind or start is None:
        raise Invalid(FOREIGN_PAGE)
    if size != limit:
        raise Invalid(OTHER_SIZE)
    return Window(limit, start)


def page_id_of(kind: str, limit: int, following: Any) -> str | None:
    """The id of the page that begins there."""
    if following is None:
        return None
    text = json.dumps([kind, limit, following], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
