"""What a route has at hand: the store, the vault, the publisher."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import BackgroundTasks, Depends, Request

from shared.broker import Publisher
from shared.clock import after
from shared.crypto import Vault
from shared.database import Database
from shared.jobs import Job
from shared.settings import Settings


@dataclass(frozen=True)
class Context:
    """The process's parts, made once in `api.app`."""

    settings: Settings
    database: Database
    vault: Vault
    publisher: Publisher


def get_context(request: Request) -> Context:
    """The context of this application."""
    context: Context = request.app.state.context
    return context


Here = Annotated[Context, Depends(get_context)]


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
        self._tasks.add_task(self._here.publisher.publish, *jobs)


Hurry = Annotated[Wishes, Depends()]
