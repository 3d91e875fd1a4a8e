"""What a route has at hand: the store, the vault, the publisher."""

import asyncio
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated

from fastapi import BackgroundTasks, Depends, Request
from starlette.requests import HTTPConnection

from api.agent_servers import AgentServers
from api.answers import Answers
from api.callers import Callers
from api.git.client import GitClient
from api.key_uses import KeyUses
from api.lookout import Lookout
from api.publishing import Publishing
from api.readiness import Readiness
from api.streams import Streams
from shared.broker import Publisher
from shared.clock import after
from shared.crypto import Vault
from shared.database import Database
from shared.jobs import Job
from shared.settings import Settings
from shared.store import users, web_sessions


@dataclass(frozen=True)
class Context:
    """The process's parts, made once in `api.app`."""

    settings: Settings
    database: Database
    vault: Vault
    publisher: Publisher
    lookout: Lookout
    streams: Streams

    @cached_property
    def callers(self) -> Callers:
        """Who asks with an API key."""
        find = partial(users.authenticate, self.database, self.vault)
        return Callers(find, "unknown, revoked or expired API key")

    @cached_property
    def signed_in(self) -> Callers:
        """Who asks with a browser's cookie."""
        find = partial(web_sessions.authenticate, self.database, self.vault)
        return Callers(find, "signed out: sign in at /login")

    @cached_property
    def publishing(self) -> Publishing:
        """Who sends jobs without holding up requests."""
        return Publishing(self.publisher)

    @cached_property
    def key_uses(self) -> KeyUses:
        """Who writes down that a key was used."""
        return KeyUses(self.database)

    @cached_property
    def answers(self) -> Answers:
        """Lists as they were shown last."""
        return Answers(self.settings.lists_memory_mb * 1024 * 1024)

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
        return GitClient(self.settings.git_listed)

    def leave(self) -> None:
        """Let all requests come to an end that wait for something: this process is to end."""
        self.lookout.close()
        self.streams.close()


def get_context(request: HTTPConnection) -> Context:
    """The context of this application."""
    context: Context = request.app.state.context
    return context


async def _depend(request: Request) -> Context:
    # A dependency that is no coroutine is sent to the thread pool and back.
    return get_context(request)


Here = Annotated[Context, Depends(_depend)]


class Wishes:
    """Hurries what a route has written: the jobs go out after the answer, so that no broker delays it."""

    def __init__(self, here: Here, tasks: BackgroundTasks) -> None:
        """One for each request."""
        self._here = here
        self._tasks = tasks
        # When the sweep hands the row out, should the job be lost.
        self.due_at = after(here.settings.republish_seconds)

    def hurry(self, *jobs: Job) -> None:
        """Publish these jobs once the answer is out; call it after the commit."""
        self._tasks.add_task(self._here.publishing.publish, *jobs)

    def hurry_now(self, *jobs: Job) -> None:
        """Begin to publish these jobs before the answer, which is to wait for them, but not for the broker."""
        publishing = asyncio.ensure_future(self._here.publishing.publish(*jobs))
        self._tasks.add_task(asyncio.wait, {publishing})


Hurry = Annotated[Wishes, Depends()]
