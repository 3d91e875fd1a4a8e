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
# Tokens (brackets, commas, quotes and escapes) of one document, and of all that one request brings.
MAX_TOKENS = 500_000
MAX_LISTED_TOKENS = 5_000_000
TOKEN = re.compile(rb'\\.|["\[\]{},]', re.DOTALL)
# To search this much takes less than 2 ms.
STEP_BYTES = 65_536
NO_LIST = "a list is needed"
# More threads would only take turns.
_THREADS = ThreadPoolExecutor(2, "json")

Result = TypeVar("Result")


class TooManyValues(ValueError):
    """Parsing it would take too long."""


class _Token(NamedTuple):
    kind: bytes
    position: int
    # Of all tokens, those within strings too.
    number: int


async def in_thread_if_large(text: bytes, work: Callable[..., Result], *arguments: Any) -> Result:
    """Do work that depends on how large a text is: at once if it is small, in a thread if not."""
    if len(text) <= SMALL_BYTES:
        return work(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work, *arguments)


async def parse(text: bytes) -> Any:
    """The document.

    Raises:
        ValueError: it is none, or has too many values.
        RecursionError: it is nested too deep.
    """
    return await in_thread_if_large(text, load, text)


def load(text: bytes) -> Any:
    """The document; in a thread, if it may be large.

    Raises:
        ValueError: it is none, or has too many values.
        RecursionError: it is nested too deep.
    """
    check_size(text)
    return json.loads(text)


def check_size(text: bytes, max_values: int = MAX_TOKENS) -> None:
    """Refuse what would take long to parse.

    Raises:
        TooManyValues: there are more values than that, or more tokens than `MAX_TOKENS`.
    """
    values = 0
    for token in _structure(text, MAX_TOKENS):
        values += token.kind in b"[{,"
        if values > max_values:
            raise TooManyValues(f"there are more than {max_values} values")


def split_list(text: bytes) -> Iterator[bytes]:
    """The elements of a list, in order, none of them parsed.

    Raises:
        ValueError: it is no list.
        TooManyValues: an element has too many tokens, or all of them together.
    """
    depth, begin, first_token = 0, 0, 0
    for kind, position, number in _structure(text, MAX_LISTED_TOKENS):
        if number - first_token > MAX_TOKENS:
            raise TooManyValues(f"one element has more than {MAX_TOKENS} brackets, commas, quotes and escapes")
        depth += (kind in b"[{") - (kind in b"]}")
        if not begin:
            _check_nothing(text[:position] if kind == b"[" else text)
            begin = position + 1
        elif depth == 1 and kind == b",":
            yield text[begin:position]
            begin, first_token = position + 1, number
        elif depth == 0:
            _check_nothing(text[position + 1 :] if kind == b"]" else text)
            if first_token or text[begin:position].strip():
                yield text[begin:position]
            return
    raise ValueError(NO_LIST)


def _check_nothing(text: bytes) -> None:
    if text.strip():
        raise ValueError(NO_LIST)


def _structure(text: bytes, max_tokens: int) -> Iterator[_Token]:
    """Brackets and commas outside of strings.

    Raises:
        TooManyValues: there are more tokens than that.
    """
    is_string = False
    for number, match in enumerate(_tokens(text), 1):
        if number > max_tokens:
            raise TooManyValues(f"there are more than {max_tokens} brackets, commas, quotes and escapes")
        if (kind := match[0]) == b'"':
            is_string = not is_string
        elif not is_string:
            yield _Token(kind, match.start(), number)


def _tokens(text: bytes) -> Iterator[re.Match[bytes]]:
    """Every token, found in short steps: while one step searches, the event loop waits."""
    begin = 0
    while begin < len(text):
        end, last = begin + STEP_BYTES, begin
        for match in TOKEN.finditer(text, begin, end):
            yield match
            last = match.end()
        is_cut = last < end < len(text) and text[end - 1 : end] == b"\\"
        begin = end - 1 if is_cut else end
