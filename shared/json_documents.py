"""Free-form JSON from outside: what must hold before it can be kept and given out again."""

import json
import math
from collections.abc import Collection, Iterator
from typing import Any

from pydantic_core import from_json

# Deeper than anything a tool's schema or an agent's event needs, and shallow enough for every serialiser.
MAX_LEVELS = 100
# What `shorten` cuts texts to, step by step, in characters; it leaves alone what is little longer.
CUTS = (500_000, 100_000, 10_000, 1_000, 100)
CUT_SPARED = 100
# More values than these are not written in one call, during which no other thread works: 20,000 floats take 40 ms.
MAX_VALUES_AT_ONCE = 20_000
STEP_CHARACTERS = 65_536
_STORED = json.JSONEncoder(separators=(",", ":"))
_SHOWN = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def read_document(content: bytes, max_values: int) -> Any:
    """Parse JSON from a sandbox, in memory that does not depend on what it holds.

    Args:
        max_values: about as many values may be in it. Commas and brackets are counted, those in texts too: before it is
            parsed nobody knows which is which.

    Raises:
        ValueError: it is no JSON (NaN and half a surrogate pair are none), nested too deep, or holds more values.
    """
    if sum(map(content.count, (b",", b"[", b"{"))) > max_values:
        raise ValueError(f"more than {max_values} values")
    return from_json(content, allow_inf_nan=False)


def check_document(document: Any) -> None:
    """Refuse what could be kept but not given out again.

    Raises:
        ValueError: it is nested too deep, or holds NaN or an infinity, which JSON does not have.
    """
    for _ in _walk(document):
        pass


def check_texts(document: Any) -> None:
    """Refuse, beyond that, half a surrogate pair, which has an escape in JSON but no UTF-8.

    Raises:
        ValueError: the document holds one, or is not one that `check_document` passes.
    """
    for value in _walk(document):
        for text in value if isinstance(value, dict) else [value]:
            if isinstance(text, str) and not _is_unicode(text):
                raise ValueError("half of a surrogate pair is no text")


def write_document(document: Any, *, ascii_only: bool = True) -> str:
    """The document, compact; one of many values is written in steps, between which other threads work.

    Args:
        document: what JSON can hold.
        ascii_only: as it is stored: all else is escaped.
    """
    encoder = _STORED if ascii_only else _SHOWN
    return "".join(encoder.iterencode(document)) if _has_many_values(document) else encoder.encode(document)


def write_text(text: str) -> Iterator[bytes]:
    """The pieces of a text as a JSON string in UTF-8, each made in a short step."""
    yield b'"'
    for begin in range(0, len(text), STEP_CHARACTERS):
        yield json.dumps(text[begin : begin + STEP_CHARACTERS], ensure_ascii=False)[1:-1].encode()
    yield b'"'


def count_bytes(document: Any) -> int:
    """How large a document is as it is stored."""
    return len(write_document(document))


def shorten(document: dict[str, Any], most_bytes: int, *, keep: Collection[str]) -> dict[str, Any]:
    """The document, in its own shape, with its longest texts cut until it is no larger than that.

    Args:
        document: one that `check_document` passes.
        most_bytes: its greatest size as it is stored.
        keep: the members that are left where cutting texts does not suffice; they must be small.
    """
    for longest in CUTS:
        if count_bytes(document) <= most_bytes:
            return document
        document = _cut(document, longest)
    if count_bytes(document) <= most_bytes:
        return document
    return {name: document[name] for name in keep if name in document}


def clean_text(value: Any, most: int) -> str | None:
    """The value as text that every database stores, cut to `most` characters; None if it is no text or empty."""
    if not isinstance(value, str):
        return None
    return storable(value)[:most] or None


def storable(text: str) -> str:
    """The text without NULs and halves of surrogate pairs, which not every database stores."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


def _has_many_values(document: Any) -> bool:
    level, number = [document], 1
    while level and number <= MAX_VALUES_AT_ONCE:
        level = [item for value in level for item in _items(value)]
        number += len(level)
    return number > MAX_VALUES_AT_ONCE


def _items(value: Any) -> Collection[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _walk(document: Any) -> Iterator[Any]:
    level = [document]
    for _ in range(MAX_LEVELS):
        yield from level
        level = [item for value in level for item in _members(value)]
        if not level:
            return
    raise ValueError(f"nested deeper than {MAX_LEVELS} levels")


def _members(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("NaN and infinities are not JSON")
    return value if isinstance(value, list) else []


def _cut(value: Any, longest: int) -> Any:
    if isinstance(value, str) and len(value) > longest + CUT_SPARED:
        return f"{value[:longest]} … ({len(value) - longest} characters were left out)"
    if isinstance(value, dict):
        return {name: _cut(member, longest) for name, member in value.items()}
    return [_cut(member, longest) for member in value] if isinstance(value, list) else value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
