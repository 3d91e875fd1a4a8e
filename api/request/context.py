"""What a route has at hand: the store, the vault, the publisher."""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated

from fastapi import Depends, Request
from starlette.requests import HTTPConnection

from api.agent_server.client import AgentServers
from api.git.http_client import GitClient
from api.realtime.change_streams import Streams
from api.realtime.completion_waiter import CompletionWaiter
from api.request.job_publisher import Publishing
from api.request.key_lookup import BatchedKeyLookup, KeyUseRecorder
from api.request.readiness import Readiness
from api.request.response_cache import ResponseCache
from shared.crypto import Vault
from shared.db.database import Database
from shared.queue.broker import Publisher
from shared.settings import Settings
from shared.users import api_keys, web_sessions


@dataclass(frozen=True)
class Context:
    """The process's parts, made once in `api.app`."""

    settings: Settings
    database: Database
    vault: Vault
    publisher: Publisher
    waiter: CompletionWaiter
    streams: Streams

    @cached_property
    def callers(self) -> BatchedKeyLookup:
        """Who asks with an API key."""
        find = partial(api_keys.authenticate, self.database, self.vault)
        return BatchedKeyLookup(find, "unknown, revoked or expired API key")

    @cached_property
    def signed_in(self) -> BatchedKeyLookup:
        """Who asks with a browser's cookie."""
        find = partial(web_sessions.authenticate, self.database, self.vault)
        return BatchedKeyLookup(find, "signed out: sign in at /login")

    @cached_property
    def publishing(self) -> Publishing:
        """Who sends jobs without holding up requests."""
        return Publishing(self.publisher)

    @cached_property
    def key_uses(self) -> KeyUseRecorder:
        """Who writes down that a key was used."""
        return KeyUseRecorder(self.database)

    @cached_property
    def answers(self) -> ResponseCache:
        """Lists as they were shown last."""
        return ResponseCache(self.settings.list_cache_mb * 1024 * 1024)

    @cached_property
    def readiness(self) -> Readiness:
        """Who finds out whether the store answers."""
        return Readiness(self.database)

    @cached_property
    def agent_servers(self) -> AgentServers:
        """Who knows about sandboxes from within."""
        return AgentServers(self.vault)

    @cached_property
    def git(self) -> GitClient:
        """Who knows about repositories."""
        return GitClient(self.settings.git_host_list)

    def leave(self) -> None:
        """Let all requests come to an end that wait for something: this process is to end."""
        self.waiter.close()
        self.streams.close()


def get_context(request: HTTPConnection) -> Context:
    """The context of this application."""
    context: Context = request.app.state.context
    return context


async def _depend(request: Request) -> Context:
    # A dependency that is no coroutine is sent to the thread pool and back.
    return get_context(request)


ContextDep = Annotated[Context, Depends(_depend)]
