"""A conversation as a zip archive: what is known of it, and its events, one file each (wire contract 1.1)."""

import re
from collections.abc import Iterator
from json import dumps
from tempfile import SpooledTemporaryFile
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZipFile

from sqlmodel import Session

from api.schemas.conversations import AppConversation
from shared.errors import TooLarge
from shared.models import Event
from shared.store import events
from shared.store.events import EventFilter

MOST_EVENTS = 10_000
# Larger archives are made on disk; bytes.
MOST_IN_MEMORY = 8 * 1024 * 1024
PAGE = 500
CHUNK_BYTES = 64 * 1024
# What changes by the minute, and what opens a sandbox, is not what a conversation was.
LEFT_OUT = {"sandbox_status", "execution_status", "conversation_url", "session_api_key", "workspace"}
ODD = re.compile(r"[^A-Za-z0-9_-]")


def export(session: Session, conversation: AppConversation, owner_id: str) -> IO[bytes]:
    """The archive, to be read from its beginning; whoever reads it closes it.

    Raises:
        TooLarge: there are more events than one archive holds.
    """
    number = events.count(session, conversation.id, owner_id, EventFilter())
    if number > MOST_EVENTS:
        raise TooLarge(f"{number} events are more than the {MOST_EVENTS} of one archive: read them page by page")
    file = SpooledTemporaryFile(MOST_IN_MEMORY)  # noqa: SIM115 - it is the answer
    with ZipFile(file, "w", ZIP_DEFLATED) as archive:
        archive.writestr("meta.json", conversation.model_dump_json(exclude=LEFT_OUT, indent=2))
        for place, event in enumerate(_read_events(session, conversation.id, owner_id)):
            archive.writestr(f"event_{place:06}_{ODD.sub('_', event.id)}.json", dumps(event.body, indent=2))
    file.seek(0)
    return file


def read_chunks(file: IO[bytes]) -> Iterator[bytes]:
    """The file's bytes; it is closed at the end."""
    with file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _read_events(session: Session, conversation_id: str, owner_id: str) -> Iterator[Event]:
    """All of them, oldest first, a page at a time."""
    page_id: Any = None
    while True:
        page = events.search(
            session, conversation_id, owner_id, EventFilter(), descending=False, page_id=page_id, limit=PAGE
        )
        yield from page.items
        session.expunge_all()  # they need not all be held
        page_id = page.next_page_id
        if page_id is None:
            return
