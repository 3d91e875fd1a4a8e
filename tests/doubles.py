"""Test doubles."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from shared.queue.broker import Publisher
from shared.queue.jobs import Job


class RecordingPublisher(Publisher):
    """A publisher that records jobs in order and sends nothing."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def publish(self, *jobs: Job) -> None:
        self.jobs += jobs


class ImmediateExecutor(Executor):
    """An executor that runs work immediately in the submitting thread."""

    def submit(self, act: Callable[..., Any], /, *args: Any, **_kwargs: Any) -> Future[Any]:
        """Run the work. Its errors are raised here."""
        done = Future[Any]()
        done.set_result(act(*args))
        return done


class ManualExecutor(Executor):
    """An executor that queues work until a test runs it."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def submit(self, act: Callable[..., Any], /, *args: Any, **_kwargs: Any) -> Future[Any]:
        self.waiting.append((act, args))
        return Future()

    def run(self) -> None:
        """Run the first queued work."""
        act, args = self.waiting.pop(0)
        act(*args)
