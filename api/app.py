"""The FastAPI application, put together."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import structlog
from anyio import to_thread
from fastapi import APIRouter, Depends, FastAPI
from starlette.routing import BaseRoute, Mount

from api.body import BodyGuard
from api.caching import NoStore
from api.canvas import Canvas
from api.context import Context
from api.cors import Cors
from api.errors import install_error_handlers
from api.head import HeadAsGet
from api.lists import GivenAgain, ListRoute
from api.lookout import Lookout
from api.routes import (
    account,
    agents,
    changes,
    cloud_proxy,
    config,
    conversations,
    conversations_v0,
    description,
    device,
    events,
    git,
    health,
    keys,
    llm_profiles,
    login,
    metrics,
    options_v0,
    organizations,
    pending_messages,
    providers,
    sandbox_secrets,
    sandbox_specs,
    sandboxes,
    secrets,
    secrets_v0,
    settings,
    settings_v1,
    start_streams,
    start_tasks,
    users,
    web_client,
    webhooks,
    workspaces,
    workspaces_v0,
)
from api.slashes import SlashRedirect
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
# Requests that are in threads at a time. Many more than there are connections to the database: those who wait for a
# slot to write, as one caller's requests for a locked row do, must leave threads to the others.
THREADS = 120
# Of the ten connections for sessions.
KEPT_FOR_READING = 2
V1 = "/api/v1"
LISTS = (conversations.lists, sandboxes.lists)


def create_app(context: Context) -> FastAPI:
    """The application over the given parts; all applications of a process share their routes."""
    sandbox_path = SandboxPath(context)
    # Traffic first: no other route begins so, and this one is matched once for each of its requests.
    routes = [Mount(PREFIX, sandbox_path), *ROUTES, Mount(description.PARTS, description.parts)]
    app = FastAPI(title="Agent Workspace", version="1", docs_url=None, redoc_url=None, routes=routes, lifespan=_live)
    app.state.context = context
    app.state.sandbox_path = sandbox_path
    _add_canvas(app, context.settings)
    app.router.redirect_slashes = False
    app.router.default = SlashRedirect(app.router.routes, app.router.default)
    install_error_handlers(app)
    limits = context.settings
    # The first one stands closest to the routes.
    app.add_middleware(HeadAsGet)
    app.add_middleware(BodyGuard, max_bytes=limits.max_body_bytes, max_webhook_bytes=limits.max_webhook_bytes)
    app.add_middleware(GivenAgain, lists=_list_routes())
    app.add_middleware(NoStore)
    if limits.cors_listed:
        # Outermost: a browser's first question has no key.
        app.add_middleware(Cors, origins=frozenset(limits.cors_listed))
    return app


def _list_routes() -> dict[str, ListRoute]:
    routes = [route for first in LISTS for route in first.routes]
    return {f"{V1}{route.path}": route for route in routes if isinstance(route, ListRoute)}


def _add_canvas(app: FastAPI, settings: Settings) -> None:
    """The web page, if it was unpacked, takes what no route does."""
    with suppress(FileNotFoundError):
        app.router.default = Canvas(settings.canvas, app.router.default)


def _make_routes() -> list[BaseRoute]:
    """The routes of every application. Fixed names come before `/{id}` ones: their order is the order of the match."""
    api = APIRouter()
    for first in LISTS:
        api.include_router(first, prefix=V1)
    _add_v1(api)
    for module in (account, keys, organizations, cloud_proxy):
        api.include_router(module.router, prefix="/api")
    for module in (settings, providers, secrets_v0, conversations_v0, workspaces_v0, options_v0):
        api.include_router(module.router, prefix="/api")
    for module in (login, device, health, metrics, description):
        api.include_router(module.router)
    for route in api.routes:
        # FastAPI finds out what functions want when it is first asked for a path: a tenth of a second, which the first
        # client would wait.
        route.matches({"type": "http", "method": "GET", "path": "/", "headers": []})
    return api.routes


def _add_v1(api: APIRouter) -> None:
    for module in (
        changes,
        start_tasks,
        start_streams,
        workspaces,
        agents,
        conversations,
        pending_messages,
        events,
        sandbox_specs,
        sandboxes,
    ):
        api.include_router(module.router, prefix=V1)
    for module in (settings_v1, secrets, users, config, web_client, sandbox_secrets, webhooks, git):
        api.include_router(module.router, prefix=V1)
    api.include_router(llm_profiles.router, prefix=f"{V1}/settings/profiles")
    # Where a page looks for them once an organization is chosen; the same operations, so they are described once.
    api.include_router(
        llm_profiles.router,
        prefix="/api/organizations/{organization_id}/profiles",
        dependencies=[Depends(organizations.check_organization)],
        include_in_schema=False,
    )


def make_context(settings: Settings) -> Context:
    """The parts a process of this configuration has."""
    announce = Announcer(settings.broker).announce
    database = Database(settings.database, announce=announce, kept_for_reading=KEPT_FOR_READING)
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
    to_thread.current_default_thread_limiter().total_tokens = THREADS
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
        await context.agent_servers.close()
        await context.git.close()


async def _keep_up(run: Callable[[], Awaitable[None]]) -> None:
    """A defect in what goes on beside the requests must not end them."""
    while True:
        try:
            await run()
        except Exception as error:
            log.exception("beside_failed", error=type(error).__name__)
        await asyncio.sleep(RESTART_SECONDS)


ROUTES = _make_routes()
