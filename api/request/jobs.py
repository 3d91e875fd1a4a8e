"""The jobs that a request enqueues once its transaction has committed."""

import asyncio
from typing import Annotated

from fastapi import BackgroundTasks, Depends

from api.request.context import ContextDep
from shared.clock import after
from shared.queue.jobs import Job


class JobQueue:
    """Hurries what a route has written: the jobs go out after the answer, so that no broker delays it."""

    def __init__(self, context: ContextDep, tasks: BackgroundTasks) -> None:
        """One for each request."""
        self._context = context
        self._tasks = tasks
        # When the sweep hands the row out, should the job be lost.
        self.due_at = after(context.settings.republish_seconds)

    def enqueue(self, *jobs: Job) -> None:
        """Publish these jobs once the answer is out; call it after the commit."""
        self._tasks.add_task(self._context.publishing.publish, *jobs)

    def enqueue_now(self, *jobs: Job) -> None:
        """Begin to publish these jobs before the answer, which is to wait for them, but not for the broker."""
        publishing = asyncio.ensure_future(self._context.publishing.publish(*jobs))
        self._tasks.add_task(asyncio.wait, {publishing})


JobQueueDep = Annotated[JobQueue, Depends()]
