"""Page ids of providers' lists: the kind of list, the page size, and the provider's own position in the list."""

from typing import Any

from api.git.provider import Window
from shared.errors import Invalid
from shared.sql import page_ids
from shared.sql.page_ids import FOREIGN_PAGE

OTHER_SIZE = "page_id belongs to another limit: use the same limit for all pages"


def open_window(kind: str, page_id: str | None, limit: int) -> Window:
    """Return the window of a list that a page id selects.

    Args:
        kind: the list; a page id of another one is refused.
        page_id: from the page before; None: the first page.
        limit: the page size.

    Raises:
        Invalid: the page id belongs to another list, or to another page size.
    """
    if page_id is None:
        return Window(limit)
    size, start = page_ids.decode(page_id, [kind], 2)
    if start is None:
        raise Invalid(FOREIGN_PAGE)
    if size != limit:
        raise Invalid(OTHER_SIZE)
    return Window(limit, start)


def page_id_of(kind: str, limit: int, following: Any) -> str | None:
    """Return the id of the page that begins at `following`; None if there is none."""
    return None if following is None else page_ids.encode([kind], limit, following)
