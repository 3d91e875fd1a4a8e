"""Free-form JSON from outside: the checks it must pass before it can be stored and served."""

import json
import math
from collections.abc import Collection, Iterator
from itertools import accumulate
from typing import Any

from pydantic_core import from_json

# Deeper than any tool's schema or agent's event, and shallow enough for every serialiser.
MAX_LEVELS = 100
# The lengths, in characters, to which `shorten` cuts texts: each is tried in turn. Slightly longer texts are not cut.
CUTS = (500_000, 100_000, 10_000, 1_000, 100)
CUT_SPARED = 100
# A document with more values is written in pieces, because one call blocks all other threads: 20,000 floats take 40 ms.
MAX_VALUES_PER_CALL = 20_000
CHUNK_CHARACTERS = 65_536
_STORED = json.JSONEncoder(separators=(",", ":"))
_UNICODE = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def read_document(content: bytes, max_values: int, *, is_cut: bool = False) -> Any:
    """Parse JSON from a sandbox in bounded memory, regardless of its content.

    Args:
        max_values: the approximate limit of values. Commas and brackets are counted, including those in texts, since
            they cannot be distinguished before parsing.
        is_cut: whether the end is missing: what is complete is returned.

    Raises:
        ValueError: it is not JSON (NaN and half a surrogate pair are not), is nested too deep, or has too many values.
    """
    if sum(map(content.count, (b",", b"[", b"{"))) > max_values:
        raise ValueError(f"more than {max_values} values")
    return from_json(content, allow_inf_nan=False, allow_partial=is_cut)


def check_document(document: Any) -> Any:
    """Return the document, or reject one that could be stored but not served.

    Raises:
        ValueError: it is nested too deep, or holds NaN or an infinity, which JSON does not have.
    """
    for _ in _walk(document):
        pass
    return document


def check_texts(document: Any) -> Any:
    """Check as `check_document`; also reject half a surrogate pair, which has an escape in JSON but no UTF-8.

    Raises:
        ValueError: the document holds half a surrogate pair, or fails `check_document`.
    """
    for value in _walk(document):
        for text in value if isinstance(value, dict) else [value]:
            if isinstance(text, str) and not _is_unicode(text):
                raise ValueError("half of a surrogate pair is not valid text")
    return document


def write_document(document: Any, *, ascii_only: bool = True) -> str:
    """The document as compact JSON. A large one is written in pieces, so that other threads can run in between.

    Args:
        document: a document that `check_document` passes.
        ascii_only: escape all characters that are not ASCII, as in the database.
    """
    encoder = _STORED if ascii_only else _UNICODE
    return "".join(encoder.iterencode(document)) if _has_many_values(document) else encoder.encode(document)


def write_text(text: str) -> Iterator[bytes]:
    """A text as a JSON string in UTF-8, in pieces that each take little time to encode."""
    yield b'"'
    for begin in range(0, len(text), CHUNK_CHARACTERS):
        yield json.dumps(text[begin : begin + CHUNK_CHARACTERS], ensure_ascii=False)[1:-1].encode()
    yield b'"'


def count_bytes(document: Any) -> int:
    """The size of a document in the database, in bytes."""
    return len(write_document(document))


def shorten(document: dict[str, Any], max_bytes: int, *, otherwise: dict[str, Any]) -> dict[str, Any]:
    """The document with its longest texts cut until it fits into `max_bytes`. Its structure is kept.

    Args:
        document: one that `check_document` passes.
        max_bytes: the max size in the database.
        otherwise: the small document to return if cutting texts does not suffice.
    """
    if count_bytes(document) <= max_bytes:
        return document
    cuts = list(accumulate(CUTS, _cut, initial=document))[1:]
    # Counting the bytes of many values takes long: if the shortest cut is too large, the others are not counted.
    if count_bytes(cuts[-1]) > max_bytes:
        return otherwise
    return next(cut for cut in cuts if count_bytes(cut) <= max_bytes)


def clean_text(value: Any, max_length: int) -> str | None:
    """The value as text that databases can store, cut to `max_length` characters; None if it is not text, or empty."""
    if not isinstance(value, str):
        return None
    return storable(value)[:max_length] or None


def storable(text: str) -> str:
    """The text with NULs and halves of surrogate pairs replaced, which not every database can store."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


def _has_many_values(document: Any) -> bool:
    level, number = [document], 1
    while level and number <= MAX_VALUES_PER_CALL:
        level = [item for value in level for item in _items(value)]
        number += len(level)
    return number > MAX_VALUES_PER_CALL


def _items(value: Any) -> Collection[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _walk(document: Any) -> Iterator[Any]:
    level = [document]
    for _ in range(MAX_LEVELS):
        yield from level
        level = [item for value in level for item in _checked_items(value)]
        if not level:
            return
    raise ValueError(f"nested deeper than {MAX_LEVELS} levels")


def _checked_items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("NaN and infinities are not JSON")
    return value if isinstance(value, list) else []


def _cut(value: Any, max_characters: int) -> Any:
    if isinstance(value, str) and len(value) > max_characters + CUT_SPARED:
        return f"{value[:max_characters]} … ({len(value) - max_characters} characters were left out)"
    if isinstance(value, dict):
        return {name: _cut(item, max_characters) for name, item in value.items()}
    return [_cut(item, max_characters) for item in value] if isinstance(value, list) else value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
