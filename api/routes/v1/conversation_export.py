"""Export a conversation as a zip archive: its metadata, and one file for each event (wire contract 1.1)."""

import json
import re
from collections.abc import Iterator
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from api.schemas.v1.conversations import AppConversation
from shared.conversations import events
from shared.conversations.events import EventFilter
from shared.db.database import Database
from shared.errors import TooLarge
from shared.json_documents import write_document
from shared.models import Event

MAX_EVENTS = 10_000
# Events held in memory at a time: some contain a screenshot.
PAGE = 20
# Larger events are written without indentation, because it makes a deeply nested event ninety times as large.
MAX_INDENTED = 64 * 1024
# Excluded: fields that change by the minute, and the key of the sandbox.
EXCLUDED = {"sandbox_status", "execution_status", "conversation_url", "session_api_key", "workspace"}
UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def check_number(database: Database, conversation_id: str, owner_id: str) -> None:
    """Refuse a conversation with too many events for one archive.

    Raises:
        TooLarge: there are more than `MAX_EVENTS`.
    """
    with database.reading() as session:
        number = events.count(session, conversation_id, owner_id, EventFilter())
    if number > MAX_EVENTS:
        raise TooLarge(f"{number} events are more than the {MAX_EVENTS} of one archive: read them page by page")


def export(database: Database, conversation: AppConversation, owner_id: str) -> Iterator[bytes]:
    """Stream the archive. Between two pieces no database connection is held, and no file is written."""
    buffer = _Buffer()
    with ZipFile(buffer, "w", ZIP_DEFLATED) as archive:
        archive.writestr("meta.json", conversation.model_dump_json(exclude=EXCLUDED, indent=2))
        for place, event in enumerate(_read_events(database, conversation.id, owner_id)):
            archive.writestr(f"event_{place:06}_{UNSAFE.sub('_', event.id)}.json", _write(event.body))
            yield buffer.take()
    yield buffer.take()


def _write(body: Any) -> str:
    compact = write_document(body)
    return compact if len(compact) > MAX_INDENTED else json.dumps(body, indent=2)


class _Buffer:
    """A write-only, unseekable file whose content is taken after each write."""

    def __init__(self) -> None:
        self._written = bytearray()

    def write(self, data: bytes) -> int:
        self._written += data
        return len(data)

    def close(self) -> None:
        pass

    def flush(self) -> None:
        pass

    def take(self) -> bytes:
        """Take the bytes written since the last call."""
        taken, self._written = bytes(self._written), bytearray()
        return taken


def _read_events(database: Database, conversation_id: str, owner_id: str) -> Iterator[Event]:
    """All events, oldest first, read page by page."""
    page_id: Any = None
    while True:
        with database.reading() as session:
            page = events.search(
                session, conversation_id, owner_id, EventFilter(), descending=False, page_id=page_id, limit=PAGE
            )
        yield from page.items
        page_id = page.next_page_id
        if page_id is None:
            return
