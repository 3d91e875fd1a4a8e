"""Responses of lists, joined from the JSON of their items."""

import json
from collections.abc import Callable, Iterable

from fastapi import Response

from api.schemas.sandbox_urls import SandboxUrls
from shared.crypto import Vault
from shared.sql.pagination import Page

# The vault that decrypts session keys, and the URLs of sandboxes for the caller.
ShownTo = tuple[Vault, SandboxUrls]

# Max items in the cache of each kind of row: two or three kilobytes for each.
CACHED_ITEMS = 8192


def write_page(page: Page[str], write: Callable[[str, Vault, SandboxUrls], bytes], *shown_to: *ShownTo) -> Response:
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
