"""Export a conversation as a zip archive: its metadata, and one file for each event (wire contract 1.1)."""

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import structlog
from fastapi.responses import StreamingResponse
from starlette.types import Send

from api.request.authentication import Caller
from api.request.context import UNKNOWN
from api.schemas.v1.conversations import AppConversation
from shared.conversations import events, queries
from shared.conversations.events import EventFilter
from shared.db.database import Database
from shared.errors import NotFound, TooLarge, Unauthenticated
from shared.json_documents import write_document
from shared.users import api_keys

log = structlog.get_logger()

MAX_EVENTS = 10_000
# Events in memory at a time: some contain a screenshot.
PAGE = 20
# Larger events are written without indentation, because it makes a deeply nested event ninety times as large.
MAX_INDENTED = 64 * 1024
# Excluded: fields that change by the minute, and the key of the sandbox.
EXCLUDED = {"sandbox_status", "execution_status", "conversation_url", "session_api_key", "workspace"}
UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


class ArchiveResponse(StreamingResponse):
    """The response with an archive.

    It ends incomplete if the caller's key is revoked, or the conversation deleted, before all events were read.
    """

    async def stream_response(self, send: Send) -> None:
        """Send the archive."""
        try:
            await super().stream_response(send)
        except (NotFound, Unauthenticated) as error:
            # Without the end of the response, the server closes the connection.
            log.warning("download_interrupted", error=type(error).__name__)


def check_number(database: Database, conversation_id: str, owner_id: str) -> None:
    """Refuse a conversation with too many events for one archive.

    Raises:
        TooLarge: there are more than `MAX_EVENTS`.
    """
    with database.reading() as session:
        number = events.count(session, conversation_id, owner_id, EventFilter())
    if number > MAX_EVENTS:
        raise TooLarge(f"{number} events are more than the {MAX_EVENTS} of one archive: read them page by page")


def export(database: Database, conversation: AppConversation, caller: Caller) -> Iterator[bytes]:
    """Stream the archive, a page of events at a time.

    Between two pieces no database connection is held, no file is written, and no event is kept: a client may take long
    to read a piece, and a parsed event is many times as large as a compressed one.

    Raises:
        NotFound: the conversation was deleted.
        Unauthenticated: the caller's key was revoked, or has expired.
    """
    buffer = _Buffer()
    with ZipFile(buffer, "w", ZIP_DEFLATED) as archive:
        archive.writestr("meta.json", conversation.model_dump_json(exclude=EXCLUDED, indent=2))
        add_page = partial(_add_page, archive, database, conversation.id, caller)
        page_id = add_page(None)
        while page_id is not None:
            yield buffer.take()
            page_id = add_page(page_id)
    yield buffer.take()


def _add_page(
    archive: ZipFile, database: Database, conversation_id: str, caller: Caller, page_id: str | None
) -> str | None:
    """Add the events of a page, oldest first; return the id of the next page."""
    with database.reading() as session:
        if api_keys.find_in_force(session, caller.id, caller.key_id) is None:
            raise Unauthenticated(UNKNOWN)
        queries.get(session, conversation_id, caller.id)
        page = events.search(
            session, conversation_id, caller.id, EventFilter(), descending=False, page_id=page_id, limit=PAGE
        )
    # The archive has one file besides the events.
    for place, event in enumerate(page.items, len(archive.filelist) - 1):
        archive.writestr(f"event_{place:06}_{UNSAFE.sub('_', event.id)}.json", _write(event.body))
    return page.next_page_id


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
