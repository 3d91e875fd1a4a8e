"""The FastAPI application, put together."""

from fastapi import FastAPI

from api.body import BodyGuard
from api.context import Context
from api.errors import install_error_handlers
from api.routes import (
    conversations,
    events,
    health,
    providers,
    sandbox_specs,
    sandboxes,
    settings,
    start_tasks,
    webhooks,
)
from shared.broker import Publisher, make_app
from shared.crypto import Vault
from shared.database import Database
from shared.settings import Settings


def create_app(context: Context) -> FastAPI:
    """The application over the given parts."""
    app = FastAPI(title="Agent Workspace", version="1", redoc_url=None)
    app.state.context = context
    # Fixed names come before `/{id}` ones: the order of the routers is the order of the match.
    signed_in = [start_tasks, conversations, events, sandbox_specs, sandboxes]
    for module in signed_in:
        app.include_router(module.router, prefix="/api/v1")
    for module in (settings, providers):
        app.include_router(module.router, prefix="/api")
    app.include_router(webhooks.router, prefix="/api/v1")
    app.include_router(health.router)
    install_error_handlers(app)
    limits = context.settings
    app.add_middleware(BodyGuard, max_bytes=limits.max_body_bytes, max_webhook_bytes=limits.max_webhook_bytes)
    return app


def make_context(settings: Settings) -> Context:
    """The parts a process of this configuration has."""
    return Context(
        settings=settings,
        database=Database(settings.database),
        vault=Vault(settings.vault_keys),
        publisher=Publisher(make_app(settings)),
    )
