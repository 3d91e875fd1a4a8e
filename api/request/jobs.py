"""The jobs that a request enqueues once its transaction has committed."""

import asyncio
from typing import Annotated

from fastapi import BackgroundTasks, Depends

from api.request.context import ContextDep
from shared.clock import after
from shared.queue.jobs import Job


class JobQueue:
    """Enqueues the jobs of one request after its response, so that no broker delays the response."""

    def __init__(self, context: ContextDep, tasks: BackgroundTasks) -> None:
        """Enqueue with the background tasks of one request."""
        self._context = context
        self._tasks = tasks
        # When the sweep enqueues the row, should the job be lost.
        self.due_at = after(context.settings.republish_seconds)

    def enqueue(self, *jobs: Job) -> None:
        """Publish the jobs after the response is sent. Call this after the commit."""
        self._tasks.add_task(self._context.publishing.publish, *jobs)

    def enqueue_now(self, *jobs: Job) -> None:
        """Start to publish the jobs before the response, which waits for them to be executed.

        The response does not wait for the broker: publishing may end after it.
        """
        publishing = asyncio.ensure_future(self._context.publishing.publish(*jobs))
        self._tasks.add_task(asyncio.wait, {publishing})


JobQueueDep = Annotated[JobQueue, Depends()]
