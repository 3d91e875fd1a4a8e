"""The cost of a sweep in an old store with nothing due, and its effect on concurrent writes.

The store has `size` sandboxes, most of them deleted, each with a conversation and its start.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import httpx
from sqlalchemy import insert
from sqlmodel import SQLModel

from shared.db.database import Database
from shared.ids import new_id
from shared.settings import Settings
from shared.states import Stage, Status
from shared.users import settings_store
from tests.bench.figures import Figure, Runs
from tests.bench.site import running_store
from tests.factories import (
    NODE_ID,
    VAULT,
    ApiUser,
    make_conversation,
    make_sandbox,
    make_start_task,
    make_user,
)
from tests.fakes.engine import FakeEngine
from tests.worker.contexts import make_context
from worker.context import WorkerContext
from worker.loops.sweep import sweep
from worker.settings import WorkerSettings

SAMPLES = 100
ALIVE = 200
BATCH = 5_000
# The pause between two samples, so that those of a run overlap several sweeps.
PAUSE_SECONDS = 0.03


def sweeps(kind: str, size: int, runs: int) -> Iterator[Figure]:
    """Measure a sweep with nothing due, and a change of settings with and without concurrent sweeps."""
    with ExitStack() as stack:
        database = stack.enter_context(closing(Database(stack.enter_context(running_store(kind)), idle_seconds=120)))
        alice = make_user(database, "alice")
        _fill(database, alice, size)
        context = _make_parts(database)
        sweep(context)
        swept = [_time(lambda: sweep(context)) for _ in range(runs)]
        yield Figure(
            f"a sweep with nothing due, {size:,} sandboxes",
            swept,
            goal="p50 ≤ 5 ms",
            check=lambda one: one.at(0.5).median <= 0.005,
        )
        yield _writes(context, alice, size, runs)


def _writes(context: WorkerContext, alice: ApiUser, size: int, runs: int) -> Figure:
    beside: Runs = []
    alone: Runs = []
    for _ in range(runs):
        alone.append(_time(lambda: _change_settings(context.database, alice)))
        with _sweeping(context):
            beside.append(_time(lambda: _change_settings(context.database, alice)))
    return Figure(
        f"a change of settings beside a sweep each second, {size:,} sandboxes",
        beside,
        "without sweeps",
        alone,
        "p95 ≤ 100 ms",
        lambda one: one.at(0.95).median <= 0.1,
    )


def _change_settings(database: Database, user: ApiUser) -> None:
    with database.transaction() as session:
        settings_store.change(session, VAULT, user.id, {"language": new_id()})


@contextmanager
def _sweeping(context: WorkerContext) -> Iterator[None]:
    """Run sweeps at the worker's interval."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(context.settings.sweep_seconds):
            sweep(context)

    sweeper = threading.Thread(target=repeat)
    sweeper.start()
    try:
        yield
    finally:
        ended.set()
        sweeper.join()


def _time(act: Callable[[], None]) -> list[float]:
    return [_time_once(act) for _ in range(SAMPLES)]


def _time_once(act: Callable[[], None]) -> float:
    time.sleep(PAUSE_SECONDS)
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _fill(database: Database, owner: ApiUser, size: int) -> None:
    for status, number in ((Status.DELETED, size - ALIVE), (Status.RUNNING, ALIVE)):
        sandbox = make_sandbox(database, owner, status=status)
        task = make_start_task(database, owner, sandbox, stage=Stage.READY)
        conversation = make_conversation(database, owner, sandbox)
        for first in range(1, number, BATCH):
            with database.transaction() as session:
                for row, own in ((sandbox, "session_key_digest"), (task, "conversation_id"), (conversation, "title")):
                    session.execute(insert(type(row)), _copies(row, own, min(BATCH, number - first)))
    if database.engine.dialect.name == "postgresql":  # as autovacuum does after a while; SQLite never does
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ANALYZE")


def _copies(row: SQLModel, own: str, number: int) -> list[dict[str, Any]]:
    columns = row.model_dump()
    return [columns | {"id": new_id(), own: new_id()} for _ in range(number)]


def _make_parts(database: Database) -> WorkerContext:
    return make_context(database, FakeEngine(), httpx.Client(), Settings(), WorkerSettings(node=NODE_ID))
