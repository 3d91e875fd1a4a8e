"""Requests that wait until their sandbox runs, and the one wish that wakes it, however many they are.

In one process the wish of the first request is everybody's. Of several processes, the one that locks the row first
writes it, and the others find it written.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from starlette.concurrency import run_in_threadpool

from api.errors.upstream import TemporarilyUnavailable, WakeTimeout
from api.realtime.completion_waiter import AwaitedRow
from api.request.context import Context
from api.sandbox_proxy.user_limits import Shares
from shared.clock import after
from shared.errors import Conflict, NotFound
from shared.models import Sandbox
from shared.queue.jobs import Job, PauseSandbox, ResumeSandbox
from shared.sandboxes import access as sandbox_access
from shared.sandboxes.access import SandboxAccess
from shared.sandboxes.availability import Availability, availability_of

log = structlog.get_logger()

# For one whose wish was answered and that boots again all the same: no wish tells when that is over.
LOOK_AGAIN_SECONDS = 1.0
# Of all that may wait, so many may be one user's.
MAX_HELD_OF_ONE = 250

Look = Callable[[], Awaitable[SandboxAccess]]


class Waker:
    """The waking of one process, on its event loop."""

    def __init__(self, context: Context) -> None:
        """Wake the sandboxes of this process's store."""
        self._context = context
        self._held = 0
        self._wishing: dict[str, asyncio.Task[int]] = {}
        self._publishing: set[asyncio.Task[None]] = set()
        self._shares = Shares(MAX_HELD_OF_ONE, "requests that wait for sandboxes")

    async def ensure_running(self, seen: SandboxAccess, look: Look) -> SandboxAccess:
        """The sandbox once it runs; the wish is written if nobody has wished that yet.

        Args:
            seen: the sandbox as it was a moment ago.
            look: how it is now.

        Raises:
            Conflict: it is paused and its spec says not to wake it, or it is in ERROR.
            NotFound: it was deleted.
            QuotaExceeded: its owner may have no more sandboxes running.
            StillAsleep: it took too long.
            NotNow: too many requests wait, it was paused again, or this process is to end.
        """
        if availability_of(seen) == Availability.RUNS:
            return seen
        if self._held >= self._context.settings.wake_max_waiting:
            raise TemporarilyUnavailable("too many requests wait for their sandboxes already; try again")
        self._held += 1
        try:
            with self._shares.taking(seen.owner_id):
                return await self._ensure_running(seen, look)
        finally:
            self._held -= 1

    async def _ensure_running(self, seen: SandboxAccess, look: Look) -> SandboxAccess:
        clock = asyncio.get_running_loop().time
        ends_at = clock() + self._context.settings.wake_seconds
        woken = False
        while (standing := availability_of(seen)) != Availability.RUNS:
            generation, most = seen.generation, ends_at - clock()
            if standing == Availability.SLEEPS:
                if woken:
                    raise TemporarilyUnavailable(
                        "the sandbox was paused again while this request waited for it; try again"
                    )
                generation, woken = await self._wish(seen), True
            elif standing == Availability.SETTLES:
                if generation == seen.observed_generation:
                    generation, most = generation + 1, min(most, LOOK_AGAIN_SECONDS)
            else:
                raise _refusal(seen, standing)
            settled = await self._context.waiter.settle(AwaitedRow(Sandbox, seen.id, generation), most)
            if not settled and self._context.waiter.is_closed:
                raise TemporarilyUnavailable("the service is being restarted; try again")
            if clock() >= ends_at:
                raise WakeTimeout("the sandbox did not run in time; it still may: try again")
            seen = await look()
        return seen

    async def _wish(self, seen: SandboxAccess) -> int:
        """Wish that it runs, together with whoever wishes that at the moment; which wish to wait for."""
        if not seen.wake_on_traffic:
            path = f"POST /api/v1/sandboxes/{seen.id}/resume"
            raise Conflict(f"the sandbox is paused, and its spec says not to wake it: resume it first, with {path}")
        task = self._wishing.get(seen.id)
        if task is None:
            task = self._wishing[seen.id] = asyncio.create_task(self._write_wish(seen))
            task.add_done_callback(lambda done: self._forget(seen.id, done))
        # Whoever leaves does not take the others' wish along.
        return await asyncio.shield(task)

    async def _write_wish(self, seen: SandboxAccess) -> int:
        sandbox, jobs = await run_in_threadpool(self._commit_wish, seen)
        if jobs:
            log.info("waking", sandbox=sandbox.id, generation=sandbox.generation)
            publishing = asyncio.create_task(self._context.publishing.publish(*jobs))
            self._publishing.add(publishing)
            publishing.add_done_callback(self._publishing.discard)
        return sandbox.generation

    def _commit_wish(self, seen: SandboxAccess) -> tuple[Sandbox, list[Job]]:
        settings = self._context.settings
        due_at = after(settings.republish_seconds)
        with self._context.database.transaction() as session:
            sandbox, paused, wished = sandbox_access.resume(
                session, seen.id, seen.owner_id, settings.quotas, due_at=due_at, only_asleep=True
            )
        pauses = [PauseSandbox(row.id, row.node_id) for row in paused]
        return sandbox, [*pauses, ResumeSandbox(sandbox.id, sandbox.node_id)] if wished else []

    def _forget(self, sandbox_id: str, done: asyncio.Task[int]) -> None:
        self._wishing.pop(sandbox_id, None)
        if not done.cancelled():
            done.exception()  # seen, even if everybody has left


def _refusal(seen: SandboxAccess, standing: Availability) -> Exception:
    if standing == Availability.FAILED:
        return Conflict(f"sandbox {seen.id} is in ERROR ({seen.reason}): resume or replace it first")
    return NotFound("sandbox", seen.id)
