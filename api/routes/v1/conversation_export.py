"""A conversation as a zip archive: what is known of it, and its events, one file each (wire contract 1.1)."""

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
# Events that are held at a time: some have a screenshot in them.
PAGE = 20
# What is larger is written without line breaks: indented, one that is nested deep has ninety times its size.
MAX_INDENTED = 64 * 1024
# What changes by the minute, and what opens a sandbox, is not what a conversation was.
LEFT_OUT = {"sandbox_status", "execution_status", "conversation_url", "session_api_key", "workspace"}
ODD = re.compile(r"[^A-Za-z0-9_-]")


def check_number(database: Database, conversation_id: str, owner_id: str) -> None:
    """Refuse what is too much for one archive.

    Raises:
        TooLarge: there are more events than that.
    """
    with database.reading() as session:
        number = events.count(session, conversation_id, owner_id, EventFilter())
    if number > MAX_EVENTS:
        raise TooLarge(f"{number} events are more than the {MAX_EVENTS} of one archive: read them page by page")


def export(database: Database, conversation: AppConversation, owner_id: str) -> Iterator[bytes]:
    """The archive, made as it is sent: while its reader takes a piece, no connection is held, and no file."""
    sent = _Sent()
    with ZipFile(sent, "w", ZIP_DEFLATED) as archive:
        archive.writestr("meta.json", conversation.model_dump_json(exclude=LEFT_OUT, indent=2))
        for place, event in enumerate(_read_events(database, conversation.id, owner_id)):
            archive.writestr(f"event_{place:06}_{ODD.sub('_', event.id)}.json", _write(event.body))
            yield sent.take()
    yield sent.take()


def _write(body: Any) -> str:
    compact = write_document(body)
    return compact if len(compact) > MAX_INDENTED else json.dumps(body, indent=2)


class _Sent:
    """A file that can't be read or sought: what is written is taken at once."""

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
        """What was written since the last time."""
        taken, self._written = bytes(self._written), bytearray()
        return taken


def _read_events(database: Database, conversation_id: str, owner_id: str) -> Iterator[Event]:
    """All of them, oldest first, a page at a time."""
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
