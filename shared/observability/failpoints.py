"""Failpoints for tests: before and after each external write, a process can kill itself.

The name of a point is `<operation>/<n>/<kind>.<verb>.<before|after>`: the executing job, routine or route, and the
number of writes of that kind that it has begun. `AW_FAILPOINTS`, read at the start of the process, sets the action of
the points. Without it there are none:

    kill:NAME@MARKER   die (`kill -9`) at that point unless the file MARKER exists; create it just before
    led:DIRECTORY      read these files in the directory at each point:
                       met     append a line for every point that is reached: its name, a tab, and
                               `<pid>.<the operation's number in this process>.<thread>`
                       armed   die at the named point; remove the file just before
                       held    block the start of the named operations, one per line, while they are in the file
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import wraps
from itertools import count
from pathlib import Path
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Act = Callable[[str], None]

VARIABLE = "AW_FAILPOINTS"
HOLD_SECONDS = 0.01


class Operation:
    """An executing operation, with the numbers of its writes by kind."""

    _numbers = count(1)

    def __init__(self, name: str) -> None:
        """Start with no writes."""
        self.number = next(self._numbers)
        self._name = name
        self._begun: Counter[str] = Counter()

    def name(self, write: str, phase: str) -> str:
        """The name of the current point."""
        if phase == "before":
            self._begun[write] += 1
        return f"{self._name}/{self._begun[write]}/{write}.{phase}"


def begin(operation: str) -> None:
    """Set the operation of this thread or asyncio task."""
    if _act is not None:
        _current.set(Operation(operation))
        _hold(operation)


def before(write: str) -> None:
    """Reach the point before a write, named `<kind>.<verb>`."""
    if _act is not None:
        _act(_operation().name(write, "before"))


def after(write: str) -> None:
    """Reach the point after a write."""
    if _act is not None:
        _act(_operation().name(write, "after"))


def around(write: str) -> AbstractContextManager[None]:
    """A context manager with a point before the block and, if the block succeeds, one after it."""
    return nullcontext() if _act is None else _around(write)


def watched(write: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """A decorator that runs a function in `around`."""

    def watch(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            with around(write):
                return function(*args, **kwargs)

        return call

    return watch


def make_act(mode: str) -> Act | None:
    """The action of the points in a mode.

    Raises:
        ValueError: there is no such mode.
    """
    kind, _, argument = mode.partition(":")
    match kind:
        case "":
            return None
        case "kill":
            return _killing(*argument.rsplit("@", 1))
        case "led":
            return _led(Path(argument))
    raise ValueError(f"{VARIABLE} begins with kill: or led:")


@contextmanager
def _around(write: str) -> Iterator[None]:
    before(write)
    yield
    after(write)


def _operation() -> Operation:
    operation = _current.get()
    if operation is None:
        operation = Operation("process")
        _current.set(operation)
    return operation


def _hold(operation: str) -> None:
    while _held is not None and operation in _lines(_held):
        time.sleep(HOLD_SECONDS)


def _lines(file: Path) -> list[str]:
    with suppress(FileNotFoundError):
        return file.read_text().splitlines()
    return []


def _killing(point: str, marker: str = "") -> Act:
    def act(name: str) -> None:
        if name == point and not (marker and Path(marker).exists()):
            if marker:
                Path(marker).touch()
            _die()

    return act


def _led(directory: Path) -> Act:
    armed = directory / "armed"
    descriptor = os.open(directory / "met", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def act(name: str) -> None:
        met_by = f"{os.getpid()}.{_operation().number}.{threading.get_ident()}"
        os.write(descriptor, f"{name}\t{met_by}\n".encode())
        with suppress(FileNotFoundError):
            if armed.read_text() == name:
                armed.unlink()  # fails if it was disarmed concurrently
                _die()

    return act


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()  # another thread receives the signal; this thread must write nothing more


_current: ContextVar[Operation | None] = ContextVar("operation", default=None)
_mode = os.environ.get(VARIABLE, "")
_act = make_act(_mode)
_held = Path(_mode.removeprefix("led:"), "held") if _mode.startswith("led:") else None
