"""The FastAPI application, put together."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import structlog
from fastapi import FastAPI

from api.body import BodyGuard
from api.context import Context
from api.errors import install_error_handlers
from api.lookout import Lookout
from api.routes import (
    changes,
    conversations,
    events,
    health,
    metrics,
    providers,
    sandbox_specs,
    sandboxes,
    settings,
    start_tasks,
    webhooks,
)
from api.streams import Streams
from api.subscription import subscribe
from api.traffic.path import SandboxPath
from api.traffic.visit import PREFIX
from shared.broker import Publisher, make_app
from shared.crypto import Vault
from shared.database import Database
from shared.notices import Announcer
from shared.settings import Settings

log = structlog.get_logger()

RESTART_SECONDS = 1.0


def create_app(context: Context) -> FastAPI:
    """The application over the given parts."""
    app = FastAPI(title="Agent Workspace", version="1", redoc_url=None, lifespan=_live)
    app.state.context = context
    app.state.sandbox_path = SandboxPath(context)
    # Traffic first: no other route begins so, and this one is matched once for each of its requests.
    app.mount(PREFIX, app.state.sandbox_path)
    # Fixed names come before `/{id}` ones: the order of the routers is the order of the match.
    for first in (conversations.lists, sandboxes.lists):
        app.include_router(first, prefix="/api/v1")
    signed_in = [changes, start_tasks, conversations, events, sandbox_specs, sandboxes]
    for module in signed_in:
        app.include_router(module.router, prefix="/api/v1")
    for module in (settings, providers):
        app.include_router(module.router, prefix="/api")
    app.include_router(webhooks.router, prefix="/api/v1")
    for module in (health, metrics):
        app.include_router(module.router)
    install_error_handlers(app)
    limits = context.settings
    app.add_middleware(BodyGuard, max_bytes=limits.max_body_bytes, max_webhook_bytes=limits.max_webhook_bytes)
    return app


def make_context(settings: Settings) -> Context:
    """The parts a process of this configuration has."""
    database = Database(settings.database, announce=Announcer(settings.broker).announce)
    return Context(
        settings=settings,
        database=database,
        vault=Vault(settings.vault_keys),
        publisher=Publisher(make_app(settings)),
        lookout=Lookout(database),
        streams=Streams(database),
    )


@asynccontextmanager
async def _live(app: FastAPI) -> AsyncIterator[None]:
    """What goes on beside the requests."""
    context: Context = app.state.context
    async with asyncio.TaskGroup() as beside:
        tasks = [
            beside.create_task(_keep_up(context.lookout.run)),
            beside.create_task(_keep_up(context.streams.run)),
            beside.create_task(_keep_up(partial(subscribe, context.settings.broker, context.lookout, context.streams))),
        ]
        yield
        for task in tasks:
            task.cancel()
        await app.state.sandbox_path.close()


async def _keep_up(run: Callable[[], Awaitable[None]]) -> None:
    """A defect in what goes on beside the requests must not end them."""
    while True:
        try:
            await run()
        except Exception as error:
            log.exception("beside_failed", error=type(error).__name__)
        await asyncio.sleep(RESTART_SECONDS)
