"""Publish jobs in separate threads, so that a stalled broker delays no request."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial

import structlog

from shared.queue.broker import Publisher
from shared.queue.jobs import Job

log = structlog.get_logger()

THREADS = 2
# Calls that may wait for a thread. The jobs of further calls are left to the sweep.
MAX_WAITING = 1000


class JobPublisher:
    """Publishes the jobs of one process, from one event loop."""

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
