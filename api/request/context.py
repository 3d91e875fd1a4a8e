"""The objects that the routes of one process share: the store, the vault, the publisher and the caches."""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated

from fastapi import BackgroundTasks, Depends, Request
from starlette.requests import HTTPConnection

from api.agent_server.client import AgentServers
from api.git.http_client import GitClient
from api.realtime.change_streams import Streams
from api.realtime.completion_waiter import CompletionWaiter
from api.request.jobs import JobPublisher, JobQueue
from api.request.key_lookup import BatchedKeyLookup, KeyUseRecorder
from api.request.readiness import Readiness
from shared.clock import after
from shared.crypto import Vault
from shared.db.database import Database
from shared.queue.broker import Publisher
from shared.settings import Settings
from shared.users import api_keys, web_sessions


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
    def callers(self) -> BatchedKeyLookup:
        """Looks up users by API key."""
        find = partial(api_keys.authenticate, self.database, self.vault)
        return BatchedKeyLookup(find, "unknown, revoked or expired API key")

    @cached_property
    def signed_in(self) -> BatchedKeyLookup:
        """Looks up users by session cookie."""
        find = partial(web_sessions.authenticate, self.database, self.vault)
        return BatchedKeyLookup(find, "signed out: sign in at /login")

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
    def agent_servers(self) -> AgentServers:
        """Sends requests to agent servers."""
        return AgentServers(self.vault)

    @cached_property
    def git(self) -> GitClient:
        """Sends requests to git providers."""
        return GitClient(self.settings.git_host_list)

    def leave(self) -> None:
        """End all waits and streams: the process is shutting down."""
        self.waiter.close()
        self.streams.close()


def get_context(request: HTTPConnection) -> Context:
    """Return the context of the application."""
    context: Context = request.app.state.context
    return context


async def _depend(request: Request) -> Context:
    # FastAPI runs a dependency that is not a coroutine in the thread pool.
    return get_context(request)


ContextDep = Annotated[Context, Depends(_depend)]


async def _make_queue(context: ContextDep, tasks: BackgroundTasks) -> JobQueue:
    return JobQueue(context.publishing, tasks, after(context.settings.republish_seconds))


JobQueueDep = Annotated[JobQueue, Depends(_make_queue)]
