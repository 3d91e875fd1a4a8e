"""Waits until a request's sandbox runs, and resumes the sandbox once for any number of requests.

Within a process, requests for the same sandbox share the resume of the first one. Of several processes, the first to
lock the row writes the desired state, and the others find it written.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from starlette.concurrency import run_in_threadpool

from api.errors.upstream import TemporarilyUnavailable, WakeTimeout
from api.realtime.completion_waiter import AwaitedRow
from api.request.context import Context
from shared.clock import after
from shared.errors import Conflict, NotFound
from shared.models import Sandbox
from shared.sandboxes import access as sandbox_access
from shared.sandboxes.access import Availability, Resumption, SandboxAccess, availability_of

log = structlog.get_logger()

# Poll interval for a sandbox whose generation is observed, but which still boots: no generation ends that wait.
POLL_SECONDS = 1.0

Refresh = Callable[[], Awaitable[SandboxAccess]]


class Waker:
    """Wakes the sandboxes of one process's requests, on its event loop."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._resuming: dict[str, asyncio.Task[int]] = {}
        self._publishing: set[asyncio.Task[None]] = set()

    async def ensure_running(self, sandbox: SandboxAccess, refresh: Refresh) -> SandboxAccess:
        """Wait until the sandbox runs, and resume it if no other request has.

        Args:
            sandbox: the sandbox as it was just read.
            refresh: reads its current state.

        Raises:
            Conflict: the sandbox is paused and its spec disables waking, or it is in ERROR.
            NotFound: the sandbox was deleted.
            QuotaExceeded: the quota of running sandboxes of its owner is used up.
            WakeTimeout: the sandbox did not run in time.
            TooManyRequests: too many requests of the user wait.
            TemporarilyUnavailable: too many requests wait, the sandbox was paused again, or this process is stopping.
        """
        if availability_of(sandbox) == Availability.RUNNING:
            return sandbox
        with self._context.limits.waiting.hold(sandbox.owner_id):
            return await self._ensure_running(sandbox, refresh)

    async def _ensure_running(self, sandbox: SandboxAccess, refresh: Refresh) -> SandboxAccess:
        clock = asyncio.get_running_loop().time
        ends_at = clock() + self._context.settings.wake_seconds
        woken = False
        while (availability := availability_of(sandbox)) != Availability.RUNNING:
            generation, max_seconds = sandbox.generation, ends_at - clock()
            if availability == Availability.PAUSED:
                if woken:
                    raise TemporarilyUnavailable("the sandbox was paused while this request waited for it; retry")
                generation, woken = await self._resume(sandbox), True
            elif availability == Availability.RECONCILING:
                if generation == sandbox.observed_generation:
                    generation, max_seconds = generation + 1, min(max_seconds, POLL_SECONDS)
            else:
                raise _error_for(sandbox, availability)
            observed = await self._context.waiter.settle(AwaitedRow(Sandbox, sandbox.id, generation), max_seconds)
            if not observed and self._context.waiter.is_closed:
                raise TemporarilyUnavailable("the service is restarting; retry")
            if clock() >= ends_at:
                raise WakeTimeout("the sandbox did not run in time; it may still start: retry")
            sandbox = await refresh()
        return sandbox

    async def _resume(self, sandbox: SandboxAccess) -> int:
        # Returns the generation to wait for. Concurrent requests share one task.
        if not sandbox.wake_on_traffic:
            path = f"POST /api/v1/sandboxes/{sandbox.id}/resume"
            raise Conflict(f"the sandbox is paused, and its spec disables waking: resume it with {path}")
        task = self._resuming.get(sandbox.id)
        if task is None:
            task = self._resuming[sandbox.id] = asyncio.create_task(self._commit_and_publish(sandbox))
            task.add_done_callback(lambda done: self._remove(sandbox.id, done))
        # A caller that leaves must not cancel the others' resume.
        return await asyncio.shield(task)

    async def _commit_and_publish(self, sandbox: SandboxAccess) -> int:
        resumed = await run_in_threadpool(self._commit, sandbox)
        generation = resumed.sandbox.generation
        if resumed.changed:
            log.info("waking", sandbox=sandbox.id, generation=generation)
            publishing = asyncio.create_task(self._context.publishing.publish(*resumed.jobs))
            self._publishing.add(publishing)
            publishing.add_done_callback(self._publishing.discard)
        return generation

    def _commit(self, sandbox: SandboxAccess) -> Resumption:
        settings = self._context.settings
        due_at = after(settings.republish_seconds)
        with self._context.database.transaction() as session:
            return sandbox_access.resume(
                session, sandbox.id, sandbox.owner_id, settings.quotas, due_at=due_at, only_paused=True
            )

    def _remove(self, sandbox_id: str, done: asyncio.Task[int]) -> None:
        self._resuming.pop(sandbox_id, None)
        if not done.cancelled():
            done.exception()  # retrieved even if all callers have left


def _error_for(sandbox: SandboxAccess, availability: Availability) -> Exception:
    if availability == Availability.FAILED:
        return Conflict(f"sandbox {sandbox.id} is in ERROR ({sandbox.reason}): resume or replace it first")
    return NotFound("sandbox", sandbox.id)
