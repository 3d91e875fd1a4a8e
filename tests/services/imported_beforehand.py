"""Imports what processes of the service import when they start, so that forks of this process need not.

A garbage collection in a fork would copy all memory of these modules, so it leaves out the objects that exist here.
There is none during the imports, because nearly all of their objects are permanent.
"""

import gc
import importlib
import runpy
import sys

# Imported by libraries on first use.
LAZY = [
    "alembic",
    "anyio._backends._asyncio",
    "billiard.pool",
    "celery.app.amqp",
    "celery.app.control",
    "celery.app.events",
    "celery.app.log",
    "celery.app.routes",
    "celery.apps.worker",
    "celery.backends.base",
    "celery.concurrency.thread",
    "celery.events.dispatcher",
    "celery.fixups.django",
    "celery.worker.autoscale",
    "celery.worker.consumer.delayed_delivery",
    "celery.worker.strategy",
    "cryptography.fernet",
    "docker",
    "fastapi.staticfiles",
    "fastapi_offline",
    "h11",
    "kombu.matcher",
    "kombu.pidbox",
    "kombu.transport.redis",
    "psycopg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "sqlite3",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
    "websockets.asyncio.client",
    "websockets.asyncio.server",
]

gc.disable()
for name in LAZY:
    importlib.import_module(name)
# Run under other names, because each fork runs the real programs.
for program in ("api", "worker"):
    runpy.run_module(program, run_name=f"imports_of_{program}")
# This module has read this process's environment, but each fork has its own.
del sys.modules["worker.celery_app"]
gc.collect()
gc.freeze()
gc.enable()
