"""Jobs: a request enqueues them once its transaction has committed. A stalled broker delays no request."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import datetime
from functools import partial

import structlog
from fastapi import BackgroundTasks

from shared.queue.broker import Publisher
from shared.queue.jobs import Job

log = structlog.get_logger()

THREADS = 2
# Calls that may wait for a thread. The jobs of further calls are left to the sweep.
MAX_WAITING = 1000


class JobPublisher:
    """Publishes the jobs of one process, from one event loop, in threads of its own."""

    def __init__(self, publisher: Publisher) -> None:
        """Publish with `publisher`, which blocks."""
        self._publisher = publisher
        self._threads = ThreadPoolExecutor(THREADS, "publishing")
        self._waiting = 0

    async def publish(self, *jobs: Job) -> None:
        """Publish the jobs; if `MAX_WAITING` calls wait already, leave them to the sweep."""
        if self._waiting >= MAX_WAITING:
            log.warning("jobs_not_published", jobs=len(jobs), waiting=self._waiting)
            return
        self._waiting += 1
        try:
            publish = partial(copy_context().run, self._publisher.publish, *jobs)
            await asyncio.get_running_loop().run_in_executor(self._threads, publish)
        finally:
            self._waiting -= 1


class JobQueue:
    """Enqueues the jobs of one request after its response."""

    def __init__(self, publisher: JobPublisher, tasks: BackgroundTasks, due_at: datetime) -> None:
        """Enqueue with the background tasks of one request; at `due_at` the sweep enqueues the rows of lost jobs."""
        self._publisher, self._tasks = publisher, tasks
        self.due_at = due_at

    def enqueue(self, *jobs: Job) -> None:
        """Publish the jobs after the response is sent. Call this after the commit."""
        self._tasks.add_task(self._publisher.publish, *jobs)

    def enqueue_now(self, *jobs: Job) -> None:
        """Start to publish the jobs before the response, which waits for them to be executed.

        The response does not wait for the broker: publishing may end after it.
        """
        publishing = asyncio.ensure_future(self._publisher.publish(*jobs))
        self._tasks.add_task(asyncio.wait, {publishing})
