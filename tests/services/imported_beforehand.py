"""Imports what processes of the service import when they start, so that forks of this process need not.

A garbage collection in a fork would copy all memory of these modules, so it leaves out the objects that exist here.
There is none during the imports, because nearly all of their objects are permanent.
"""

import gc
import importlib
import runpy
import sys

from tests.services.celery_modules import LAZY

# Imported by other libraries on first use.
OTHERS = (
    "alembic",
    "anyio._backends._asyncio",
    "billiard.pool",
    "cryptography.fernet",
    "docker",
    "fastapi.staticfiles",
    "fastapi_offline",
    "h11",
    "psycopg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "sqlite3",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
    "websockets.asyncio.client",
    "websockets.asyncio.server",
)

gc.disable()
for name in (*LAZY, *OTHERS):
    importlib.import_module(name)
# Run under other names, because each fork runs the real programs.
for program in ("api", "worker"):
    runpy.run_module(program, run_name=f"imports_of_{program}")
# This module has read this process's environment, but each fork has its own.
del sys.modules["worker.celery_app"]
gc.collect()
gc.freeze()
gc.enable()
