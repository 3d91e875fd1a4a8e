"""What a worker checks and waits for before it works: the engine, the database, and the clocks of both machines."""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from shared import clock
from shared.db.database import UNAVAILABLE, Database
from shared.db.database_clock import keep_clock_synced, sync_clock
from shared.db.waiting import await_database
from shared.errors import Unavailable
from shared.nodes import registry as node_registry
from worker.context import WorkerContext
from worker.engine.protocol import EngineUnavailable
from worker.engine.requirements import require_runtimes
from worker.loops.heartbeat import send_heartbeat


def await_installation(database: Database, wait_seconds: float) -> str:
    """Read the installation's id.

    Raises:
        Unavailable: the database has not responded for `wait_seconds`.
    """

    def read() -> str:
        with database.transaction() as session:
            return node_registry.installation_id(session)

    return await_database(read, database.engine.url, wait_seconds, UNAVAILABLE)


def await_store(context: WorkerContext, attempt: Callable[[], object]) -> None:
    """Repeat `attempt` until the database responds and takes writes: it may restart, or its disk may be full."""
    url, seconds = context.database.engine.url, context.settings.database_wait_seconds
    try:
        await_database(attempt, url, seconds, UNAVAILABLE)
    except Unavailable as error:
        raise SystemExit(f"worker: {error}") from None


def check_runtimes(context: WorkerContext) -> None:
    """Check that the engine has all allowed runtimes. The check is skipped while the engine does not respond.

    Raises:
        EngineRefused: the engine lacks an allowed runtime.
    """
    with suppress(EngineUnavailable):
        require_runtimes(context.engine, context.settings.runtimes)


def await_right_clock(context: WorkerContext) -> None:
    """Read the database's clock, and wait until this machine's clock agrees with it.

    Raises:
        Conflict: raised by `send_heartbeat`.
    """
    await_store(context, partial(sync_clock, context.database))
    keep_clock_synced(context.database)
    while clock.is_wrong():
        send_heartbeat(context)  # reports the wrong clock
        time.sleep(context.settings.heartbeat_seconds)
