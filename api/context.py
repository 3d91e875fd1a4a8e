"""What a route has at hand: the store, the vault, the publisher, and who is calling."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import BackgroundTasks, Depends, Header, Request

from shared.broker import Publisher
from shared.clock import after
from shared.crypto import Vault
from shared.database import Database
from shared.errors import Unauthenticated
from shared.jobs import Job
from shared.models import Sandbox
from shared.settings import Settings
from shared.store import sandboxes, users


@dataclass(frozen=True)
class Context:
    """The process's parts, made once in `api.app`."""

    settings: Settings
    database: Database
    vault: Vault
    publisher: Publisher


@dataclass(frozen=True)
class Caller:
    """The user whose key came with the request."""

    id: str
    name: str
    # The key's id and prefix, for `/api/keys/current` and the audit; never the key.
    key_id: str
    key_prefix: str


def get_context(request: Request) -> Context:
    """The context of this application."""
    context: Context = request.app.state.context
    return context


Here = Annotated[Context, Depends(get_context)]


def authenticate(
    here: Here,
    authorization: Annotated[str | None, Header(include_in_schema=False)] = None,
    x_session_api_key: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> Caller:
    """The caller by `Authorization: Bearer <key>` or, where that is absent, `X-Session-API-Key: <key>`.

    Raises:
        Unauthenticated: no key, or a wrong one.
    """
    key = _bearer(authorization) or x_session_api_key
    if not key:
        raise Unauthenticated("an API key is needed: Authorization: Bearer <key>, or X-Session-API-Key: <key>")
    with here.database.reading() as session:
        user, row = users.authenticate(session, here.vault, key)
    if users.is_use_stale(row):
        with here.database.transaction() as session:
            users.record_use(session, row.id)
    return Caller(user.id, user.name, row.id, row.prefix)


def authenticate_sandbox(
    here: Here, x_session_api_key: Annotated[str | None, Header(include_in_schema=False)] = None
) -> Sandbox:
    """The sandbox whose session key came with a webhook.

    Raises:
        Unauthenticated: no key, or no sandbox's.
    """
    with here.database.reading() as session:
        sandbox = sandboxes.find_by_session_key(session, here.vault, x_session_api_key or "")
    if sandbox is None:
        raise Unauthenticated("a webhook carries its sandbox's session key in X-Session-API-Key")
    return sandbox


Me = Annotated[Caller, Depends(authenticate)]
FromSandbox = Annotated[Sandbox, Depends(authenticate_sandbox)]


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


def _bearer(authorization: str | None) -> str | None:
    scheme, _, key = (authorization or "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None
