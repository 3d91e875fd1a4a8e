"""Reads a container's log from the engine's response: possibly hostile bytes, bounded in time, size and shape.

For a container without a terminal, the engine sends frames: a header with the stream and the number of bytes, then a
time, and a line or a part of one. For a container with a terminal, it sends the same without headers.
"""

import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from shared.container_logs.limits import MAX_LINES
from shared.container_logs.printed_text import PrintedLine, PrintedLog

# Max entries that are requested; an entry is a line, or 16 KiB of a longer one.
MAX_ENTRIES = MAX_LINES
# The number of last bytes that are kept in memory: more than are stored, because hiding secrets shortens the text.
MAX_KEPT_BYTES = 256 * 1024
MAX_ENTRY_BYTES = 1024 * 1024
# Timeout of the whole response, and of each part of it. It is short, because no caller depends on a log. The lines that
# arrive until then are used.
MAX_SECONDS = 2
HEADER_BYTES = 8
STREAMS = range(3)
FRAME = re.compile(rb"[\x00-\x02]\0\0\0")
TIME = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z) ?", re.ASCII)
NO_TIME = "0001-01-01T00:00:00.000000000Z"


class Entry(NamedTuple):
    """A line of one stream, or a part of it. `line_ends`: whether it is the last part."""

    stream: int
    at: str
    content: bytes
    line_ends: bool


def read_log(chunks: Iterable[bytes]) -> PrintedLog:
    """The last lines of a log, in the order of their ends.

    Args:
        chunks: the response to a request for up to `MAX_ENTRIES` entries, with times.
    """
    kept, size, dropped = deque[Entry](), 0, 0
    for entry in _entries(_until(chunks, time.monotonic() + MAX_SECONDS)):
        kept.append(entry)
        size += len(entry.content)
        while size > MAX_KEPT_BYTES and len(kept) > 1:
            size -= len(kept.popleft().content)
            dropped += 1
    is_cut = len(kept) + dropped >= MAX_ENTRIES or dropped > 0
    return PrintedLog(_lines(kept, set(STREAMS if is_cut else ())), is_cut)


def _lines(entries: Iterable[Entry], cut: set[int]) -> list[PrintedLine]:
    """Join the parts of lines. A line whose end is missing comes last.

    Args:
        entries: of all streams.
        cut: the streams whose first line may lack its beginning.
    """
    lines: list[PrintedLine] = []
    open_parts: dict[int, list[Entry]] = {}
    for entry in entries:
        parts = open_parts.setdefault(entry.stream, [])
        parts.append(entry)
        if entry.line_ends:
            lines.append(_join(parts, is_partial=entry.stream in cut))
            cut.discard(entry.stream)
            parts.clear()
    return lines + [_join(parts, is_partial=True) for parts in open_parts.values() if parts]


def _join(parts: list[Entry], *, is_partial: bool) -> PrintedLine:
    text = b"".join(part.content for part in parts).decode(errors="replace")
    return PrintedLine(parts[-1].at, text.replace("\n", " "), is_partial)


def _until(chunks: Iterable[bytes], deadline: float) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk
        if time.monotonic() > deadline:
            return


def _entries(chunks: Iterator[bytes]) -> Iterator[Entry]:
    """The entries of a response; an incomplete last one is left out."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while (found := _take(buffer)) is not None:
            stream, content = found
            yield _entry(stream, content)
        if len(buffer) > MAX_ENTRY_BYTES:
            return


def _take(buffer: bytearray) -> tuple[int, bytes] | None:
    """Remove one entry from the front of the buffer; None: it is incomplete."""
    if FRAME.match(buffer):
        end = HEADER_BYTES + int.from_bytes(buffer[4:HEADER_BYTES], "big")
        stream, start = buffer[0], HEADER_BYTES
        is_complete = len(buffer) >= max(HEADER_BYTES, end)
    else:
        stream, start, end = 1, 0, buffer.find(b"\n") + 1
        is_complete = end > 0
    if not is_complete:
        return None
    content = bytes(buffer[start:end])
    del buffer[:end]
    return stream, content


def _entry(stream: int, content: bytes) -> Entry:
    found = TIME.match(content)
    at, printed = (found[1].decode(), content[found.end() :]) if found else (NO_TIME, content)
    return Entry(stream, at, printed.removesuffix(b"\n"), printed.endswith(b"\n"))
