"""Reduction of untrusted JSON that is too large to parse, in chunks between which the event loop runs."""

from collections.abc import Iterator, Sequence

from api.json_text import LONG_NUMBER, LongNumber, TooCostly, TooManyValues, check_size, split_object, tokens

# Lengths in unparsed bytes to which texts are cut, in this order, until the document is small enough. A text that is
# slightly longer is not cut.
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
        ValueError: the text is not an object, or has very many small properties.
    """
    try:
        text = cut_texts(text, max_bytes)
        check_size(text)
    except (TooManyValues, TooLong, LongNumber):
        return b"{%b}" % b",".join(pair for pair in split_object(text) if _is_small(pair))
    return text


def _is_small(pair: bytes) -> bool:
    return len(pair) <= SMALL_PROPERTY_BYTES and LONG_NUMBER.search(pair) is None


def cut_texts(text: bytes, max_bytes: int) -> bytes:
    """Cut the long texts of an unparsed document until it has at most `max_bytes` bytes.

    Raises:
        TooLong: the document is still larger when all its texts are short.
    """
    if len(text) <= max_bytes:
        return text
    long_texts = list(_find_longer(text, min(CUTS) + CUT_TOLERANCE))
    for max_length in CUTS:
        cut = b"".join(_cut(text, long_texts, max_length))
        if len(cut) <= max_bytes:
            return cut
    raise TooLong(f"more than {max_bytes} bytes, even with its texts cut")


def _find_longer(text: bytes, min_length: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of every text that is longer."""
    begin = None
    for match in tokens(text):
        if match[0] != QUOTE:
            continue
        if begin is None:
            begin = match.end()
            continue
        if (end := match.start()) > begin + min_length:
            yield begin, end
        begin = None


def _cut(text: bytes, long_texts: Sequence[tuple[int, int]], max_length: int) -> Iterator[bytes]:
    """Yield the document in pieces, with these texts cut to `max_length`."""
    rest = 0
    for begin, end in long_texts:
        if end > begin + max_length + CUT_TOLERANCE:
            border = _find_border(text, begin, begin + max_length)
            yield text[rest:border] + f" … ({end - border} bytes were left out)".encode()
            rest = end
    yield text[rest:]


def _find_border(text: bytes, begin: int, border: int) -> int:
    """Return the nearest position at or before `border` that splits no character and no escape of the text."""
    last = text.rfind(b"\\", max(begin, border - NUMBERED_BYTES + 1), border)
    before = text[begin : last + 1]
    # Of an even number of backslashes, the last one ends an escape.
    if (len(before) - len(before.rstrip(b"\\"))) % 2 and last + _length(text[last : last + 2]) > border:
        return last
    while text[border] & 0xC0 == 0x80:
        border -= 1
    return border


def _length(escape: bytes) -> int:
    return NUMBERED_BYTES if escape == NUMBERED else len(escape)
