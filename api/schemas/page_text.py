"""Pages of lists, from the texts that the store gives."""

import json
from collections.abc import Callable, Iterable

from fastapi import Response

from shared.crypto import Vault
from shared.sql.pagination import Page

# What decrypts keys; and our origin, for who reaches sandboxes through it.
ShownTo = tuple[Vault, str | None]

# Rows whose answers are remembered, of each kind: two or three kilobytes for each.
REMEMBERED = 8192


def write_page(page: Page[str], write: Callable[[str, Vault, str | None], bytes], *shown_to: *ShownTo) -> Response:
    """The bytes of a `PageOf`, each item written by itself."""
    return write_items([write(text, *shown_to) for text in page.items], page.next_page_id)


def write_items(items: Iterable[bytes], next_page_id: str | None) -> Response:
    """The bytes of a `PageOf`, from those of its items."""
    body = b'{"items":[%b],"next_page_id":%b}' % (b",".join(items), json.dumps(next_page_id).encode())
    return Response(body, media_type="application/json")


def write_list(items: Iterable[bytes]) -> Response:
    """The bytes of a list, from those of its items."""
    return Response(b"[%b]" % b",".join(items), media_type="application/json")


def write_count(number: int) -> Response:
    """A number of rows."""
    return Response(str(number), media_type="application/json")
