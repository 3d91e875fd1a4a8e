"""JSON from outside that is too large to be parsed: it is reduced first, in steps between which others work."""

import re
from collections.abc import Iterator

from api.json_text import TooCostly, TooManyValues, check_size, split_object, tokens

# What texts are cut to, step by step, in bytes as they came; what is little longer is left alone.
CUTS = (500_000, 100_000, 10_000, 1_000)
CUT_SPARED = 100
# Members that are kept where cutting texts does not suffice.
SMALL_MEMBER_BYTES = 1_000
QUOTE = b'"'
# Of the escape of a character by its number.
NUMBERED, NUMBERED_BYTES = b"\\u", 6


class TooLong(TooCostly):
    """It is too large, though none of its texts is long."""

    code = "too_long"


def reduce_object(text: bytes, max_bytes: int) -> bytes:
    """The object, unparsed, made small enough to be parsed: its longest texts are cut, or its large members left out.

    Raises:
        ValueError: it is no object, or has very many small members, or a number of too many digits.
    """
    try:
        text = cut_texts(text, max_bytes)
        check_size(text)
    except (TooManyValues, TooLong):
        return b"{%b}" % b",".join(member for member in split_object(text) if len(member) <= SMALL_MEMBER_BYTES)
    return text


def cut_texts(text: bytes, max_bytes: int) -> bytes:
    """The document, unparsed, with its longest texts cut until it is no larger than that.

    Raises:
        TooLong: it is larger still when all its texts are short.
    """
    for longest in CUTS:
        if len(text) <= max_bytes:
            return text
        text = b"".join(_cut(text, longest))
    if len(text) > max_bytes:
        raise TooLong(f"it has more than {max_bytes} bytes, though its texts were cut")
    return text


def _cut(text: bytes, longest: int) -> Iterator[bytes]:
    """What is left of the document, in order, when no text is longer than that."""
    begin, first, last = 0, None, None
    for match in tokens(text):
        if first is None:
            first, last = (match.end(), None) if match[0] == QUOTE else (None, None)
        elif match[0] != QUOTE:
            last = match if match.start() < first + longest else last
        else:
            if (end := match.start()) > first + longest + CUT_SPARED:
                border = _find_border(text, first + longest, last)
                yield text[begin:border] + f" … ({end - border} bytes were left out)".encode()
                begin = end
            first = None
    yield text[begin:]


def _find_border(text: bytes, border: int, last: re.Match[bytes] | None) -> int:
    """The nearest place before that one which is within no character and no escape.

    Args:
        last: the last token that begins before it in the same text.
    """
    if last is not None and last.start() + _length(last[0]) > border:
        return last.start()
    while text[border] & 0xC0 == 0x80:
        border -= 1
    return border


def _length(token: bytes) -> int:
    return NUMBERED_BYTES if token == NUMBERED else len(token)
