"""What a transaction writes, so that two kinds of transactions with one failpoint can be told apart."""

import hashlib
import threading
from collections.abc import Iterable
from enum import Enum
from typing import Any

from sqlalchemy import Engine, event

WRITES = ("INSERT", "UPDATE", "DELETE", "WITH")
MAX_WORD = 24


def is_word(text: str) -> bool:
    """Whether a text is the same in two runs. Longer ones are ids, addresses, keys or ciphertexts."""
    return len(text) <= MAX_WORD and not any(map(str.isdigit, text))


class WrittenStatements:
    """The statements of each thread's current transaction, of all engines of this process."""

    def __init__(self) -> None:
        self._local = threading.local()
        event.listen(Engine, "before_cursor_execute", self._add)

    def content(self, point: str) -> str:
        """A digest of the statements since the last commit; it is the same before and after a commit.

        A statement that is a transaction of its own has no content before its commit.
        """
        statements = self._statements()
        digest = hashlib.sha256("\n".join(statements).encode()).hexdigest()[:12] if statements else ""
        if point.endswith(".after"):
            statements.clear()
        return digest

    def _statements(self) -> list[str]:
        found: list[str] = self._local.__dict__.setdefault("statements", [])
        return found

    def _add(self, _connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.lstrip().upper().startswith(WRITES):
            self._statements().append(f"{statement} {' '.join(_words(parameters))}")


def _words(parameters: Any) -> Iterable[str]:
    """The values that are the same in two runs, such as statuses."""
    values = parameters.values() if isinstance(parameters, dict) else parameters
    for value in values:
        if isinstance(value, list | tuple | dict):
            yield from _words(value)
        elif isinstance(value, Enum):
            yield value.name
        elif isinstance(value, str) and is_word(value):
            yield value
