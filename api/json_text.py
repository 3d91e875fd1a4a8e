"""JSON from outside, measured before it is parsed, so that no parser holds up the event loop.

To parse is one call into C, and no other thread runs meanwhile: its time depends on how many values and escapes there
are. So they are counted first, in steps between which the event loop has its turn.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

# What is no larger is parsed at once: a thread would cost more. Bytes.
SMALL_BYTES = 32_768
# Tokens (brackets, commas, quotes and escapes) of one document, and of a list that is taken apart.
MAX_TOKENS = 500_000
MAX_LISTED_TOKENS = 5_000_000
# Lists and objects in it: all that is parsed stays, and the garbage collector goes through it in one call.
MAX_LISTED_CONTAINERS = 200_000
# Of one document, which is read in one call: values, and lists and objects among them, which cost the most.
MAX_VALUES = 50_000
MAX_CONTAINERS = 25_000
# Of one number: the time to read an integer grows with their square. No float needs more.
MAX_DIGITS = 400
LONG_NUMBER = re.compile(rb"-?[0-9]{%d}" % (MAX_DIGITS + 1))
# What may stand between a bracket, comma or quote and a number.
BLANK = b" \t\n\r:"
TOKEN = re.compile(rb'\\.|["\[\]{},]', re.DOTALL)
# To search this much takes less than 2 ms.
STEP_BYTES = 65_536
NEEDED = {b"[]": "a list is needed", b"{}": "an object is needed"}
# More threads would only take turns.
_THREADS = ThreadPoolExecutor(2, "json")

Result = TypeVar("Result")


class TooCostly(ValueError):
    """Parsing it would take too long."""

    # For machines, in the entry of a 422.
    code = "too_costly"


class TooManyValues(TooCostly):
    """There are too many values in it, or too many tokens."""

    code = "too_many_values"


class LongNumber(TooCostly):
    """A number in it has too many digits."""

    code = "number_too_long"


class _Token(NamedTuple):
    kind: bytes
    position: int


async def in_thread_if_large(text: bytes, work: Callable[..., Result], *arguments: Any) -> Result:
    """Do work that depends on how large a text is: at once if it is small, in a thread if not."""
    if len(text) <= SMALL_BYTES:
        return work(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work, *arguments)


async def parse(text: bytes) -> Any:
    """The document.

    Raises:
        ValueError: it is none; `TooCostly`, if it has too many values or a number of too many digits.
        RecursionError: it is nested too deep.
    """
    return await in_thread_if_large(text, load, text)


def load(text: bytes) -> Any:
    """The document; in a thread, if it may be large.

    Raises:
        ValueError: it is none; `TooCostly`, if it has too many values or a number of too many digits.
        RecursionError: it is nested too deep.
    """
    check_size(text)
    return json.loads(text)


def check_size(text: bytes, max_values: int = MAX_VALUES) -> None:
    """Refuse what would take long to parse.

    Raises:
        TooManyValues: there are more values than that, more lists and objects than `MAX_CONTAINERS`, or more tokens
            than `MAX_TOKENS`.
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


def split_list(text: bytes) -> Iterator[bytes]:
    """The elements of a list, in order, none of them parsed.

    Raises:
        ValueError: it is no list.
        TooManyValues: there are more tokens in it than `MAX_LISTED_TOKENS`, or more lists and objects than
            `MAX_LISTED_CONTAINERS`.
        LongNumber: a number has more digits than `MAX_DIGITS`.
    """
    return _split(text, b"[]")


def split_object(text: bytes) -> Iterator[bytes]:
    """The members of an object, each a name with its value, none of them parsed.

    Raises:
        ValueError: it is no object; else as of a list.
    """
    return _split(text, b"{}")


def _split(text: bytes, brackets: bytes) -> Iterator[bytes]:
    depth, begin, has_comma, containers = 0, 0, False, 0
    for kind, position in _structure(text, MAX_LISTED_TOKENS):
        containers += kind in b"[{"
        if containers > MAX_LISTED_CONTAINERS:
            raise TooManyValues(f"there are more than {MAX_LISTED_CONTAINERS} lists and objects")
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
    raise ValueError(NEEDED[brackets])


def _check_nothing(text: bytes, brackets: bytes) -> None:
    if text.strip():
        raise ValueError(NEEDED[brackets])


def _structure(text: bytes, max_tokens: int) -> Iterator[_Token]:
    """Brackets and commas outside of strings.

    Raises:
        TooManyValues: there are more tokens than that.
        LongNumber: a number between them has more digits than `MAX_DIGITS`.
    """
    is_string, begin = False, 0
    for number, match in enumerate(tokens(text), 1):
        if number > max_tokens:
            raise TooManyValues(f"there are more than {max_tokens} brackets, commas, quotes and escapes")
        if not is_string:
            _check_number(text, begin, match.start())
        begin = match.end()
        if (kind := match[0]) == b'"':
            is_string = not is_string
        elif not is_string:
            yield _Token(kind, match.start())
    if not is_string:
        _check_number(text, begin, len(text))


def _check_number(text: bytes, begin: int, end: int) -> None:
    """Refuse a long number between two tokens."""
    if end - begin > MAX_DIGITS and LONG_NUMBER.match(text, _skip_blank(text, begin, end), end):
        raise LongNumber(f"a number has more than {MAX_DIGITS} digits")


def _skip_blank(text: bytes, begin: int, end: int) -> int:
    """Where something else begins; in short steps, too."""
    for position in range(begin, end, STEP_BYTES):
        stop = min(position + STEP_BYTES, end)
        if rest := text[position:stop].lstrip(BLANK):
            return stop - len(rest)
    return end


def tokens(text: bytes) -> Iterator[re.Match[bytes]]:
    """Every token, found in short steps: while one step searches, the event loop waits."""
    begin = 0
    while begin < len(text):
        end, last = begin + STEP_BYTES, begin
        for match in TOKEN.finditer(text, begin, end):
            yield match
            last = match.end()
        is_cut = last < end < len(text) and text[end - 1 : end] == b"\\"
        begin = end - 1 if is_cut else end
