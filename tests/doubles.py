"""Stand-ins for the parts that a test does not want."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from shared.queue.broker import Publisher
from shared.queue.jobs import Job


class RecordingPublisher(Publisher):
    """Keeps what was published, in order, and sends nothing."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def publish(self, *jobs: Job) -> None:
        self.jobs += jobs


class PromptExecutor(Executor):
    """Does what it is given at once, in the thread that gives it."""

    def submit(self, act: Callable[..., Any], /, *args: Any, **_kwargs: Any) -> Future[Any]:
        act(*args)
        return Future()


class PatientExecutor(Executor):
    """Keeps what it is given, in order, until a test has it run."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def submit(self, act: Callable[..., Any], /, *args: Any, **_kwargs: Any) -> Future[Any]:
        self.waiting.append((act, args))
        return Future()

    def run(self) -> None:
        """Do the first of what waits."""
        act, args = self.waiting.pop(0)
        act(*args)
