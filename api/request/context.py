"""The objects that the routes of one process share: the store, the vault, lookups of keys, the publisher, the caches.

One query looks up the keys of all requests that wait for it. Each key is looked up for each request: a revoked key
fails from the next request on. Keys that arrive during a query are looked up together by the next query. So the number
of concurrent clients hardly affects the cost.

A request enqueues its jobs once its transaction has committed. A stalled broker delays no request.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from typing import Annotated, Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import structlog
from fastapi import BackgroundTasks, Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from api.agent_server.client import AgentServers
from api.git.http_client import GitClient
from api.limits.process import ProcessLimits
from api.realtime.change_streams import Streams
from api.realtime.completion_waiter import CompletionWaiter
from api.request.readiness import Readiness
from shared.agent_server.door import DoorAccess, open_access
from shared.clock import after
from shared.crypto import Vault
from shared.db.database import Database, StoreError
from shared.errors import Unauthenticated
from shared.models import Sandbox
from shared.queue.broker import Publisher
from shared.queue.jobs import Job
from shared.sandboxes import access as sandbox_access
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes.access import SandboxAccess
from shared.settings import Settings
from shared.users import api_keys, web_sessions
from shared.users.api_keys import AuthenticatedKey

log = structlog.get_logger()

THREADS = 2
# Calls that may wait for a thread. The jobs of further calls are left to the sweep.
MAX_WAITING = 1000
# What a request presents, such as a key, and what that identifies.
Key = TypeVar("Key")
Found = TypeVar("Found")
Result = TypeVar("Result")

UNKNOWN = "unknown, revoked or expired API key"
# Keys in one query.
MAX_BATCH = 64
Query = asyncio.Future[list[Found | None]]
Results = list[asyncio.Future[Found | None]]


@dataclass(eq=False)
class _Waiting(Generic[Key, Found]):
    """The keys that wait for the next query of one event loop."""

    keys: list[tuple[Key, asyncio.Future[Found | None]]] = field(default_factory=list)
    # A query runs or is about to begin.
    is_busy: bool = False


class BatchedKeyLookup(Generic[Key, Found]):
    """Finds the users or sandboxes of keys, with one query for many requests."""

    def __init__(self, look_up: Callable[[list[Key]], list[Found | None]], unknown: str) -> None:
        """Look up keys with `look_up`; `unknown` is the error message for a key that finds nothing."""
        self._look_up, self._unknown = look_up, unknown
        self._waiting = WeakKeyDictionary[asyncio.AbstractEventLoop, _Waiting[Key, Found]]()
        # A dedicated thread: a lookup does not wait for other requests' threads.
        self._thread = ThreadPoolExecutor(1, "callers")

    async def find(self, key: Key) -> Found:
        """Return what the key belongs to.

        Raises:
            Unauthenticated: the key is unknown, revoked or expired.
        """
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(loop)
        if waiting is None:
            waiting = self._waiting[loop] = _Waiting[Key, Found]()
        result: asyncio.Future[Found | None] = loop.create_future()
        waiting.keys.append((key, result))
        if not waiting.is_busy:
            waiting.is_busy = True
            loop.call_soon(self._begin, loop, waiting)  # after the requests that arrived together with this one
        found = await result
        if found is None:
            raise Unauthenticated(self._unknown)
        return found

    def _begin(self, loop: asyncio.AbstractEventLoop, waiting: _Waiting[Key, Found]) -> None:
        batch, waiting.keys = waiting.keys[:MAX_BATCH], waiting.keys[MAX_BATCH:]
        query: Query[Found] = loop.create_future()
        try:
            query = loop.run_in_executor(self._thread, self._look_up, [key for key, _ in batch])
        except RuntimeError as error:  # no thread can be started: only these requests fail
            query.set_exception(error)
        query.add_done_callback(partial(self._end, waiting, [result for _, result in batch]))

    def _end(self, waiting: _Waiting[Key, Found], results: Results[Found], query: Query[Found]) -> None:
        waiting.is_busy = bool(waiting.keys)
        if waiting.is_busy:
            # Not immediately: requests that are read meanwhile share the query. With 16 clients, that saves a tenth of
            # a cached list's processor time.
            query.get_loop().call_soon(self._begin, query.get_loop(), waiting)
        error = query.exception()
        for index, result in enumerate(results):
            if result.done():
                continue  # the request was cancelled
            if error is not None:
                result.set_exception(error)
            else:
                result.set_result(query.result()[index])


class KeyUseRecorder:
    """Records the last use of keys, for one process on its event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Ids of keys whose use is being written. Other requests with the same key skip it rather than wait for the row.
        self._writing: set[str] = set()

    async def note(self, key_id: str) -> None:
        """Record that the key is used now. The request does not fail if the store is read-only, as on a full disk."""
        if key_id in self._writing:
            return
        self._writing.add(key_id)
        try:
            await run_in_threadpool(api_keys.record_use, self._database, key_id)
        except StoreError as error:
            log.warning("key_use_not_recorded", error=type(error).__name__)
        finally:
            self._writing.discard(key_id)


class JobPublisher:
    """Publishes the jobs of one process, from one event loop, in threads of its own."""

    def __init__(self, publisher: Publisher) -> None:
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
        """Start to publish the jobs before the response, which waits until they are executed.

        The response does not wait for the broker: it may be sent before publishing has ended.
        """
        publishing = asyncio.ensure_future(self._publisher.publish(*jobs))
        self._tasks.add_task(asyncio.wait, {publishing})


@dataclass(frozen=True)
class Context:
    """The shared objects of one process, made in `api.app`."""

    settings: Settings
    database: Database
    vault: Vault
    publisher: Publisher
    waiter: CompletionWaiter
    streams: Streams

    @cached_property
    def callers(self) -> BatchedKeyLookup[str, AuthenticatedKey]:
        """Looks up users by API key."""
        find = partial(api_keys.authenticate, self.database, self.vault)
        return BatchedKeyLookup(find, UNKNOWN)

    @cached_property
    def signed_in(self) -> BatchedKeyLookup[str, AuthenticatedKey]:
        """Looks up users by session cookie."""
        find = partial(web_sessions.authenticate, self.database, self.vault)
        return BatchedKeyLookup(find, "signed out: sign in at /login")

    @cached_property
    def reporting(self) -> BatchedKeyLookup[str, Sandbox]:
        """Looks up the sandboxes of webhooks by session key."""
        find = partial(sandbox_queries.find_by_session_keys, self.database, self.vault)
        return BatchedKeyLookup(find, "a webhook needs its sandbox's session key: X-Session-API-Key: <key>")

    @cached_property
    def accessed(self) -> BatchedKeyLookup[str, SandboxAccess]:
        """Looks up the sandboxes of proxied requests by session key."""
        find = partial(sandbox_access.find_by_session_keys, self.database, self.vault)
        return BatchedKeyLookup(find, "no sandbox has this key")

    @cached_property
    def accessed_by_owner(self) -> BatchedKeyLookup[tuple[str, str], tuple[AuthenticatedKey, SandboxAccess | None]]:
        """Looks up the sandboxes of proxied requests by id and API key."""
        find = partial(sandbox_access.find_by_api_keys, self.database, self.vault)
        return BatchedKeyLookup(find, UNKNOWN)

    @cached_property
    def limits(self) -> ProcessLimits:
        """Limits requests by address, sandbox and user."""
        return ProcessLimits(self.settings)

    @cached_property
    def publishing(self) -> JobPublisher:
        """Publishes jobs without delaying requests."""
        return JobPublisher(self.publisher)

    @cached_property
    def key_uses(self) -> KeyUseRecorder:
        """Records the last use of API keys."""
        return KeyUseRecorder(self.database)

    @cached_property
    def readiness(self) -> Readiness:
        """Checks whether the store responds."""
        return Readiness(self.database)

    @cached_property
    def door(self) -> DoorAccess:
        return open_access(self.vault, self.settings.door_ca)

    @cached_property
    def agent_servers(self) -> AgentServers:
        return AgentServers(self.vault, self.door)

    @cached_property
    def git(self) -> GitClient:
        return GitClient(self.settings.git_host_list)

    async def run_in_turn(self, work: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
        """Run a part of an asynchronous route in a thread, as `_in_turn` in `authentication` does with whole routes.

        It waits while `THREADS_OF_USER` of the caller's requests run in threads.
        """
        async with self.limits.user_threads.of_caller():
            return await run_in_threadpool(work, *arguments, **options)

    def leave(self) -> None:
        """End all waits and streams: the process is shutting down."""
        self.waiter.close()
        self.streams.close()


def get_context(request: HTTPConnection) -> Context:
    context: Context = request.app.state.context
    return context


async def _depend(request: Request) -> Context:
    # FastAPI runs a dependency that is not a coroutine in the thread pool.
    return get_context(request)


ContextDep = Annotated[Context, Depends(_depend)]


async def _make_queue(context: ContextDep, tasks: BackgroundTasks) -> JobQueue:
    return JobQueue(context.publishing, tasks, after(context.settings.republish_seconds))


JobQueueDep = Annotated[JobQueue, Depends(_make_queue)]
