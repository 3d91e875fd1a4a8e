"""Untrusted JSON, measured before it is parsed, so that parsing does not block the event loop.

Parsing is one call into C that holds the interpreter's lock. Its time depends on the number of values and escapes. So
they are counted first, in chunks between which the event loop runs.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from api.fair_threads import FairThreads
from shared.sql.write_slots import caller

# A text of at most this many bytes is parsed on the event loop: a thread would cost more.
SMALL_BYTES = 32_768
# Tokens (brackets, commas, quotes and escapes) of one document, and of a list that is split.
MAX_TOKENS = 500_000
MAX_SPLIT_TOKENS = 5_000_000
# Lists and objects in a split list: all stay in memory, and the garbage collector scans them in one call.
MAX_SPLIT_CONTAINERS = 200_000
# Values of one document, which is parsed in one call, and lists and objects among them, which cost more.
MAX_VALUES = 50_000
MAX_CONTAINERS = 25_000
# Digits of one number: the time to parse an integer grows quadratically with them. No float needs more.
MAX_DIGITS = 400
LONG_NUMBER = re.compile(rb"-?[0-9]{%d}" % (MAX_DIGITS + 1))
# Characters between a bracket, comma or quote and a number.
BLANK = b" \t\n\r:"
STRUCTURE = b'"[]{},\\'
TOKEN = re.compile(rb'\\.|["\[\]{},]', re.DOTALL)
# Searching one chunk takes less than 2 ms.
CHUNK_BYTES = 65_536
EXPECTED = {b"[]": "a list is required", b"{}": "an object is required"}
# A text of more bytes, such as a webhook, may take half a minute. It must not delay the others.
LARGE_BYTES = 4 * 1024 * 1024
# More threads would only contend for the interpreter's lock.
_THREADS, _THREAD_OF_LARGE = FairThreads(2, "json"), FairThreads(1, "large-json")

Result = TypeVar("Result")


class TooCostly(ValueError):
    """The document would take too long to parse."""

    # The `type` of a 422's entry.
    code = "too_costly"


class TooManyValues(TooCostly):
    """The document has too many values or tokens."""

    code = "too_many_values"


class LongNumber(TooCostly):
    """A number has too many digits."""

    code = "number_too_long"


class _Token(NamedTuple):
    kind: bytes
    position: int


async def in_thread_if_large(text: bytes, work: Callable[..., Result], *arguments: Any) -> Result:
    """Run work whose time depends on the size of `text`: if it is large, in a thread, one for each caller.

    All texts of more than `LARGE_BYTES` share one thread, one of each caller after the other.
    """
    if len(text) <= SMALL_BYTES:
        return work(*arguments)
    threads = _THREADS if len(text) <= LARGE_BYTES else _THREAD_OF_LARGE
    return await threads.run(caller.get(), work, *arguments)


def load(text: bytes) -> Any:
    """Parse a document. Call it in a thread if the document may be large.

    Raises:
        ValueError: the text is not JSON. `TooCostly`: it has too many values, or a number with too many digits.
        RecursionError: the document is nested too deeply.
    """
    # `json` would also read UTF-16 and UTF-32, where quotes and digits are other bytes than those that are counted.
    if b"\0" in text:
        raise ValueError("the text is not UTF-8: it has NUL bytes")
    check_size(text)
    return json.loads(text)


def check_size(text: bytes, max_values: int = MAX_VALUES) -> None:
    """Reject a document that would take long to parse.

    Raises:
        TooManyValues: there are more than `max_values` values, more lists and objects than `MAX_CONTAINERS`, or more
            tokens than `MAX_TOKENS`.
        LongNumber: a number has more digits than `MAX_DIGITS`.
    """
    values, containers = 0, 0
    for token in _structure(text, MAX_TOKENS):
        containers += token.kind in b"[{"
        values += token.kind in b"[{,"
        if values > max_values:
            raise TooManyValues(f"there are more than {max_values} values")
        if containers > MAX_CONTAINERS:
            raise TooManyValues(f"there are more than {MAX_CONTAINERS} lists and objects")


def check_tokens(text: bytes, max_tokens: int) -> None:
    """Reject a document with very many tokens. This costs far less than to search them.

    Raises:
        TooManyValues: there are more than `max_tokens` of them; some escapes count twice.
    """
    count = 0
    for begin in range(0, len(text), CHUNK_BYTES):
        chunk = text[begin : begin + CHUNK_BYTES]
        count += len(chunk) - len(chunk.translate(None, STRUCTURE))
    if count > max_tokens:
        raise TooManyValues(f"there are more than {max_tokens} brackets, commas, quotes and backslashes")


def split_list(text: bytes) -> Iterator[bytes]:
    """Yield the elements of a list in order, unparsed. Their numbers may have any number of digits.

    Raises:
        ValueError: the text is not a list.
        TooManyValues: the list has more tokens than `MAX_SPLIT_TOKENS`, or more lists and objects than
            `MAX_SPLIT_CONTAINERS`.
    """
    return _split(text, b"[]")


def split_object(text: bytes) -> Iterator[bytes]:
    """Yield the properties of an object, each a name with its value, unparsed.

    Raises:
        ValueError: the text is not an object. Otherwise as for `split_list`.
    """
    return _split(text, b"{}")


def _split(text: bytes, brackets: bytes) -> Iterator[bytes]:
    depth, begin, has_comma, containers = 0, 0, False, 0
    for kind, position in _structure(text, MAX_SPLIT_TOKENS, checks_numbers=False):
        containers += kind in b"[{"
        if containers > MAX_SPLIT_CONTAINERS:
            raise TooManyValues(f"there are more than {MAX_SPLIT_CONTAINERS} lists and objects")
        depth += (kind in b"[{") - (kind in b"]}")
        if not begin:
            _check_nothing(text[:position] if kind == brackets[:1] else text, brackets)
            begin = position + 1
        elif depth == 1 and kind == b",":
            yield text[begin:position]
            begin, has_comma = position + 1, True
        elif depth == 0:
            _check_nothing(text[position + 1 :] if kind == brackets[1:] else text, brackets)
            if has_comma or text[begin:position].strip():
                yield text[begin:position]
            return
    raise ValueError(EXPECTED[brackets])


def _check_nothing(text: bytes, brackets: bytes) -> None:
    if text.strip():
        raise ValueError(EXPECTED[brackets])


def _structure(text: bytes, max_tokens: int, *, checks_numbers: bool = True) -> Iterator[_Token]:
    """Yield the brackets and commas outside of strings.

    Raises:
        TooManyValues: there are more than `max_tokens` tokens.
        LongNumber: a number between them has more digits than `MAX_DIGITS` (`checks_numbers`).
    """
    is_string, begin = False, 0
    for number, match in enumerate(tokens(text), 1):
        if number > max_tokens:
            raise TooManyValues(f"there are more than {max_tokens} brackets, commas, quotes and escapes")
        if checks_numbers and not is_string:
            _check_number(text, begin, match.start())
        begin = match.end()
        if (kind := match[0]) == b'"':
            is_string = not is_string
        elif not is_string:
            yield _Token(kind, match.start())
    if checks_numbers and not is_string:
        _check_number(text, begin, len(text))


def _check_number(text: bytes, begin: int, end: int) -> None:
    """Reject a long number between two tokens."""
    if end - begin > MAX_DIGITS and LONG_NUMBER.match(text, _skip_blank(text, begin, end), end):
        raise LongNumber(f"a number has more than {MAX_DIGITS} digits")


def _skip_blank(text: bytes, begin: int, end: int) -> int:
    """Return the position after blanks; searched in chunks, too."""
    for position in range(begin, end, CHUNK_BYTES):
        stop = min(position + CHUNK_BYTES, end)
        if remainder := text[position:stop].lstrip(BLANK):
            return stop - len(remainder)
    return end


def tokens(text: bytes) -> Iterator[re.Match[bytes]]:
    """Yield every token, searched in chunks: the search of one chunk blocks the event loop."""
    begin = 0
    while begin < len(text):
        end, last = begin + CHUNK_BYTES, begin
        for match in TOKEN.finditer(text, begin, end):
            yield match
            last = match.end()
        is_cut = last < end < len(text) and text[end - 1 : end] == b"\\"
        begin = end - 1 if is_cut else end
