"""`python -m tests.drills.faults.observer MODULE`: runs a process of the service, controlled by files of a directory.

The name of a point is `<operation>/<n>/<kind>.<verb>.<before|after>`, where n numbers the operation's writes of that
kind. The process reads these files, which `tests.drills.faults.points` writes:

    reached  a line is appended for every point that is reached: its name, a tab,
             `<pid>.<the operation's number in this process>.<thread>`, a tab, and for a commit what it writes
    armed    the process kills itself (`kill -9`) at the named point, and removes the file just before
    held     the named operations, one per line, do not begin while they are in the file
"""

import os
import runpy
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from itertools import count
from pathlib import Path

from shared.observability import failpoints
from tests.drills.faults.statements import WrittenStatements

# The directory of the files.
VARIABLE = "TEST_FAILPOINTS"
# Six installations have some twenty held routines. Polls every 10 ms took a sixth of all CPU time.
HOLD_SECONDS = 0.05
COMMIT = "/database.commit."


class Operation:
    """An executing operation, with the numbers of its writes by kind."""

    _numbers = count(1)

    def __init__(self, name: str) -> None:
        self.number = next(self._numbers)
        self._name = name
        self._begun: Counter[str] = Counter()

    def point(self, event: failpoints.Event, write: str) -> str:
        """The name of the point that is reached now."""
        self._begun[write] += event == "before"
        return f"{self._name}/{self._begun[write]}/{write}.{event}"


class Observer:
    """Computes the names of the points that a process reaches.

    Args:
        act: called with the name of each point.
        hold: called with the name of each operation; returns when the operation may begin.
    """

    def __init__(self, act: Callable[[str], None], hold: Callable[[str], None] = lambda _operation: None) -> None:
        self._act, self._hold = act, hold

    def __call__(self, event: failpoints.Event, name: str) -> None:
        """Observe an event, as `failpoints.observer`."""
        if event == "begin":
            _current.set(Operation(name))
            self._hold(name)
        else:
            self._act(_operation().point(event, name))


def file_observer(directory: Path) -> Observer:
    """Create an observer that the files in the directory control."""
    armed, held, statements = directory / "armed", directory / "held", WrittenStatements()
    descriptor = os.open(directory / "reached", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def act(point: str) -> None:
        reached_by = f"{os.getpid()}.{_operation().number}.{threading.get_ident()}"
        content = statements.content(point) if COMMIT in point else ""
        os.write(descriptor, f"{point}\t{reached_by}\t{content}\n".encode())
        with suppress(FileNotFoundError):
            if armed.read_text() == point:
                armed.unlink()  # fails if it was disarmed concurrently
                _die()

    def hold(operation: str) -> None:
        while operation in _lines(held):
            time.sleep(HOLD_SECONDS)

    return Observer(act, hold)


def run() -> None:
    """Install the observer, then run the module as the main program."""
    failpoints.observer = file_observer(Path(os.environ[VARIABLE]))
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)


def _operation() -> Operation:
    if (operation := _current.get()) is None:
        _current.set(operation := Operation("process"))
    return operation


def _lines(file: Path) -> list[str]:
    with suppress(FileNotFoundError):
        return file.read_text().splitlines()
    return []


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()  # another thread receives the signal; this thread must write nothing more


_current: ContextVar[Operation | None] = ContextVar("operation", default=None)

if __name__ == "__main__":
    run()
