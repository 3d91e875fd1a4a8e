"""Responses of lists, joined from the JSON of their items."""

import json
from collections.abc import Callable, Iterable
from functools import lru_cache, wraps

from fastapi import Response

from api.schemas.sandbox_urls import SandboxUrls
from shared.crypto import Vault
from shared.sql.pagination import Page

# The vault that decrypts session keys, and the URLs of sandboxes for the caller.
ShownTo = tuple[Vault, SandboxUrls]

Write = Callable[[str, Vault, SandboxUrls], bytes]
# Max items in the cache of each kind of row, two or three kilobytes each, and max characters of such a row. The cache
# limits items, not bytes, so longer rows are left out: sandboxes report texts, and each `Host` that requests name makes
# another item of a row.
CACHED_ITEMS = 8192
MAX_CACHED_ROW = 4096


def cached(write: Write) -> Write:
    """Cache the items that `write` encodes by its arguments, which hold all that the JSON depends on."""
    write_cached = lru_cache(CACHED_ITEMS)(write)

    @wraps(write)
    def write_item(text: str, vault: Vault, urls: SandboxUrls) -> bytes:
        return (write_cached if len(text) <= MAX_CACHED_ROW else write)(text, vault, urls)

    return write_item


def write_page(page: Page[str], write: Write, *shown_to: *ShownTo) -> Response:
    """Return a response with the JSON of a `PageOf`; `write` encodes each item."""
    return write_items([write(text, *shown_to) for text in page.items], page.next_page_id)


def write_items(items: Iterable[bytes], next_page_id: str | None) -> Response:
    """Return a response with the JSON of a `PageOf` of encoded items."""
    body = b'{"items":[%b],"next_page_id":%b}' % (b",".join(items), json.dumps(next_page_id).encode())
    return Response(body, media_type="application/json")


def write_list(items: Iterable[bytes]) -> Response:
    """Return a response with the JSON of a list of encoded items."""
    return Response(b"[%b]" % b",".join(items), media_type="application/json")


def write_count(number: int) -> Response:
    """Return a response with a number of rows."""
    return Response(str(number), media_type="application/json")
