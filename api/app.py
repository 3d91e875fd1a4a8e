"""The FastAPI application: its routes, middleware, error handlers and background tasks."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import structlog
from anyio import to_thread
from fastapi import APIRouter, Depends, FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from api import paths
from api.errors.handlers import install_error_handlers
from api.limits.keyless import KeylessLimits
from api.lists import ResponseCache, ResponseCacheMiddleware
from api.middleware.cors import allow_origins
from api.middleware.request_body import BodyLimitMiddleware
from api.middleware.responses import ResponseRules
from api.middleware.trailing_slash import SlashRedirect
from api.paths import SANDBOX_PATH_PREFIX
from api.realtime.change_streams import Streams
from api.realtime.completion_waiter import CompletionWaiter
from api.realtime.subscriber import subscribe
from api.request.context import Context
from api.routes.account import account, api_keys, device_login, login, organizations
from api.routes.ops import api_description, docs_page, health, metrics
from api.routes.v0 import conversation_workspace as v0_conversation_workspace
from api.routes.v0 import conversations as v0_conversations
from api.routes.v0 import options as v0_options
from api.routes.v0 import provider_tokens as v0_tokens
from api.routes.v0 import secrets as v0_secrets
from api.routes.v0 import settings as v0_settings
from api.routes.v1 import (
    catalog,
    changes,
    cloud_proxy,
    conversation_agent,
    conversation_workspace,
    conversations,
    events,
    git,
    llm_profiles,
    pending_messages,
    sandbox_logs,
    sandbox_secrets,
    sandbox_specs,
    sandboxes,
    secrets,
    start_streams,
    start_tasks,
    users,
    web_client_config,
    webhooks,
)
from api.routes.v1 import settings as v1_settings
from api.sandbox_proxy.app import SandboxProxy
from api.sandbox_proxy.key_listener import KeyListener
from api.web.admin import actions as admin_actions
from api.web.admin import flower as admin_flower
from api.web.admin import pages as admin_pages
from api.web.admin.rendering import ASSETS
from api.web.canvas import Canvas
from shared import __version__
from shared.backup.keys import read_vault
from shared.changes.notifier import ChangeNotifier
from shared.db.database import Database
from shared.queue.broker import Publisher, make_app
from shared.settings import Settings

log = structlog.get_logger()

RESTART_SECONDS = 1.0
# Requests that run in threads at a time. Many more than there are connections to the database: requests that wait for a
# write slot, such as one caller's requests for a locked row, must leave threads for others.
THREADS = 120
# Connections that writes leave free, of the ten for sessions.
RESERVED_FOR_READING = 2
V1 = "/api/v1"
# FastAPI's spans contain queries, and therefore keys. `ResponseRules` makes this service's spans and metrics.
NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
LISTS = (conversations.lists, sandboxes.lists)
# Paths below /api that are open to callers without a key.
KEYLESS_PATHS = {f"{V1}{route.path}" for route in web_client_config.router.routes if isinstance(route, Route)}
LIST_PATHS = {f"{V1}{route.path}" for router in LISTS for route in router.routes if isinstance(route, Route)}


class _Application(FastAPI):
    def build_middleware_stack(self) -> ASGIApp:
        """Wrap the whole application, including its handler of internal errors."""
        wrapped = ResponseRules(super().build_middleware_stack(), fixed_paths=LIST_PATHS)
        port = self.state.context.settings.client_port
        # At the client port, paths are those of agent servers.
        return KeyListener(wrapped, port=port) if port else wrapped


def create_app(context: Context) -> FastAPI:
    """Create an application with this context. All applications of a process share their routes."""
    sandbox_path = SandboxProxy(context)
    # Sandbox traffic first: nearly all requests match this route, and no other route has its prefix.
    routes = [_mount(sandbox_path), *ROUTES, Mount(paths.DOCS_ASSETS, docs_page.parts), ASSETS]
    app = _Application(
        title="Agent Workspace",
        version=__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        routes=routes,
        lifespan=_lifespan,
        telemetry=NO_TELEMETRY,
    )
    app.state.context = context
    app.state.response_cache = ResponseCache(context.settings.list_cache_mb * 1024 * 1024)
    app.state.sandbox_path = sandbox_path
    _add_canvas(app, context.settings)
    app.router.redirect_slashes = False
    app.router.default = SlashRedirect(app.router.routes, app.router.default)
    install_error_handlers(app)
    limits = context.settings
    # The first middleware is the innermost.
    app.add_middleware(
        BodyLimitMiddleware,
        max_bytes=limits.max_body_bytes,
        max_webhook_bytes=limits.max_webhook_bytes,
        max_seconds=limits.body_seconds,
    )
    app.add_middleware(ResponseCacheMiddleware, paths=LIST_PATHS, cache=app.state.response_cache)
    app.add_middleware(KeylessLimits, limits=context.limits, keyless_paths=KEYLESS_PATHS)
    if limits.cors_origin_list:
        allow_origins(app, limits.cors_origin_list)
    return app


def _mount(sandbox_path: SandboxProxy) -> Mount:
    """Mount the sandbox path for every path of a sandbox, also for one with line breaks (`%0A`)."""
    mount = Mount(SANDBOX_PATH_PREFIX, sandbox_path)
    mount.path_regex = re.compile(mount.path_regex.pattern, re.DOTALL)
    return mount


def _add_canvas(app: FastAPI, settings: Settings) -> None:
    """Serve the web UI, if installed, at paths that no route matches."""
    with suppress(FileNotFoundError):
        app.router.default = Canvas(settings.canvas, app.router.default)


def _make_routes() -> list[BaseRoute]:
    """Make the routes of all applications. Fixed paths precede `/{id}` paths: the first match wins."""
    api = APIRouter()
    for router in LISTS:
        api.include_router(router, prefix=V1)
    _add_v1(api)
    for module in (account, api_keys, organizations, cloud_proxy):
        api.include_router(module.router, prefix="/api")
    for module in (v0_settings, v0_tokens, v0_secrets, v0_conversations, v0_conversation_workspace, v0_options):
        api.include_router(module.router, prefix="/api")
    for module in (login, device_login, health, metrics, docs_page, api_description):
        api.include_router(module.router)
    for module in (admin_pages, admin_flower, admin_actions):
        api.include_router(module.router)
    for route in api.routes:
        # FastAPI analyzes the endpoints at the first match, which takes a tenth of a second. The first request must not
        # wait for it.
        route.matches({"type": "http", "method": "GET", "path": "/", "headers": []})
    return api.routes


def _add_v1(api: APIRouter) -> None:
    for module in (
        changes,
        start_tasks,
        start_streams,
        conversation_workspace,
        conversation_agent,
        conversations,
        pending_messages,
        events,
        sandbox_specs,
        sandboxes,
        sandbox_logs,
    ):
        api.include_router(module.router, prefix=V1)
    for module in (v1_settings, secrets, users, catalog, web_client_config, sandbox_secrets, webhooks, git):
        api.include_router(module.router, prefix=V1)
    api.include_router(llm_profiles.router, prefix=f"{V1}/settings/profiles")
    # The web UI requests this path when an organization is chosen. The operations are the same, so they are documented
    # under one path.
    api.include_router(
        llm_profiles.router,
        prefix="/api/organizations/{organization_id}/profiles",
        dependencies=[Depends(organizations.accept_organization)],
        include_in_schema=False,
    )


def make_context(settings: Settings) -> Context:
    publish = ChangeNotifier(settings.broker).publish
    database = Database(settings.database, publish=publish, kept_for_reading=RESERVED_FOR_READING)
    return Context(
        settings=settings,
        database=database,
        vault=read_vault(settings),
        publisher=Publisher(make_app(settings)),
        waiter=CompletionWaiter(database),
        streams=Streams(database),
    )


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Run the background tasks while the application runs, and close its connections afterwards."""
    context: Context = app.state.context
    to_thread.current_default_thread_limiter().total_tokens = THREADS
    async with asyncio.TaskGroup() as background:
        tasks = [
            background.create_task(_run_forever(context.waiter.run)),
            background.create_task(_run_forever(context.streams.run)),
            background.create_task(
                _run_forever(partial(subscribe, context.settings.broker, context.waiter, context.streams))
            ),
        ]
        yield
        for task in tasks:
            task.cancel()
        await app.state.sandbox_path.close()
        await context.agent_servers.close()
        await context.git.close()


async def _run_forever(run: Callable[[], Awaitable[None]]) -> None:
    """Run a background task; restart it after an unexpected error, which must not end the requests."""
    while True:
        try:
            await run()
        except Exception as error:
            log.exception("background_task_failed", error=type(error).__name__)
        await asyncio.sleep(RESTART_SECONDS)


ROUTES = _make_routes()
