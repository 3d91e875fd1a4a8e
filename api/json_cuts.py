"""Reduction of untrusted JSON that is too large to parse, in chunks between which the event loop runs."""

import re
from collections.abc import Iterator

from api.json_text import TooCostly, TooManyValues, check_size, split_object, tokens

# Lengths to which texts are cut, until the document is small enough; unparsed bytes. A text slightly longer is not cut.
CUTS = (500_000, 100_000, 10_000, 1_000)
CUT_TOLERANCE = 100
# Properties up to this size are kept when cutting texts is not enough.
SMALL_PROPERTY_BYTES = 1_000
QUOTE = b'"'
# The escape of a character by its code point, and its length.
NUMBERED, NUMBERED_BYTES = b"\\u", 6


class TooLong(TooCostly):
    """The document is too large, although all its texts are short."""

    code = "too_long"


def reduce_object(text: bytes, max_bytes: int) -> bytes:
    """Reduce an unparsed object until it can be parsed: cut its long texts, or remove its large properties.

    Raises:
        ValueError: the text is not an object, has very many small properties, or a number with too many digits.
    """
    try:
        text = cut_texts(text, max_bytes)
        check_size(text)
    except (TooManyValues, TooLong):
        return b"{%b}" % b",".join(pair for pair in split_object(text) if len(pair) <= SMALL_PROPERTY_BYTES)
    return text


def cut_texts(text: bytes, max_bytes: int) -> bytes:
    """Cut the long texts of an unparsed document until it has at most `max_bytes` bytes.

    Raises:
        TooLong: the document is still larger when all its texts are short.
    """
    for max_length in CUTS:
        if len(text) <= max_bytes:
            return text
        text = b"".join(_cut(text, max_length))
    if len(text) > max_bytes:
        raise TooLong(f"more than {max_bytes} bytes, even with its texts cut")
    return text


def _cut(text: bytes, max_length: int) -> Iterator[bytes]:
    """Yield the document in pieces, with texts cut to `max_length`."""
    begin, first, last = 0, None, None
    for match in tokens(text):
        if first is None:
            first, last = (match.end(), None) if match[0] == QUOTE else (None, None)
        elif match[0] != QUOTE:
            last = match if match.start() < first + max_length else last
        else:
            if (end := match.start()) > first + max_length + CUT_TOLERANCE:
                border = _find_border(text, first + max_length, last)
                yield text[begin:border] + f" … ({end - border} bytes were left out)".encode()
                begin = end
            first = None
    yield text[begin:]


def _find_border(text: bytes, border: int, last: re.Match[bytes] | None) -> int:
    """Return the nearest position at or before `border` that splits no character and no escape.

    Args:
        text: the document.
        border: where to cut.
        last: the last token before `border` in the same text.
    """
    if last is not None and last.start() + _length(last[0]) > border:
        return last.start()
    while text[border] & 0xC0 == 0x80:
        border -= 1
    return border


def _length(token: bytes) -> int:
    return NUMBERED_BYTES if token == NUMBERED else len(token)
