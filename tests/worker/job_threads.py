"""The job threads of a worker, and hostile agent servers that occupy them."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from shared.models import Sandbox
from shared.states import Desired, Status
from tests.fakes.agent_server import FakeAgentServer
from tests.waiting import eventually
from tests.worker.scenarios import row, set_desired
from worker.context import WorkerContext
from worker.sandboxes.reconciler import reconcile

# Max duration of a job that does not wait for a hostile server, on a busy machine.
JOB_SECONDS = 20
# Max duration of a hostile server's silence.
SILENCE_SECONDS = 60
REACHED = {Desired.PAUSED: Status.PAUSED, Desired.STOPPED: Status.PAUSED, Desired.DELETED: Status.DELETED}


class JobThreads:
    """A worker's job threads, and servers that respond at the end of the test."""

    def __init__(self, context: WorkerContext, pool: Executor) -> None:
        self.context = context
        self.number = context.settings.concurrency
        self._pool = pool
        self._over = threading.Event()

    def wait(self, _name: str) -> None:
        """Wait until the end of the test."""
        self._over.wait(SILENCE_SECONDS)

    def silence(self, server: FakeAgentServer) -> None:
        """Stop the server's responses until the end of the test."""
        server.before = self.wait

    def submit(self, work: Callable[..., Any], row_id: str) -> Future[Any]:
        """Run a job on the next free thread."""
        return self._pool.submit(work, self.context, row_id)

    def run(self, work: Callable[..., Any], row_id: str) -> None:
        """Run a job and wait for its end."""
        self.submit(work, row_id).result(JOB_SECONDS)

    def end(self) -> None:
        """Let all servers respond."""
        self._over.set()


@contextmanager
def job_threads(context: WorkerContext) -> Iterator[JobThreads]:
    """Start the job threads of this worker for the length of the block."""
    with ThreadPoolExecutor(context.settings.concurrency) as pool:
        threads = JobThreads(context, pool)
        try:
            yield threads
        finally:
            threads.end()


def assert_others_are_served(threads: JobThreads, others: dict[Desired, str]) -> None:
    """Assert that these sandboxes can be paused, stopped and deleted."""
    for desired, sandbox_id in others.items():
        set_desired(threads.context, sandbox_id, desired)
        threads.run(reconcile, sandbox_id)
    for desired, sandbox_id in others.items():
        eventually(partial(_has_status, threads.context, sandbox_id, REACHED[desired]), deadline_seconds=JOB_SECONDS)


def _has_status(context: WorkerContext, sandbox_id: str, status: Status) -> bool:
    return row(context, Sandbox, sandbox_id).status == status
