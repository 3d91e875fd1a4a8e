"""A stalled PostgreSQL: a worker's threads time out, and resume heartbeats, renewals and clock readings afterwards."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from structlog.testing import capture_logs

from shared import clock
from shared.db import database_clock, postgresql
from shared.db.database import Database
from shared.db.database_clock import keep_clock_synced
from shared.db.postgresql import OPTIONS
from shared.models import Node
from tests.factories import NODE_ID
from tests.services.postgres import Postgres, running_postgres
from tests.services.stores import PostgresStores
from tests.waiting import eventually
from tests.worker.scenarios import row
from worker.context import WorkerContext
from worker.loops.heartbeat import send_heartbeat
from worker.loops.periodic import PeriodicTask


@pytest.fixture
def server() -> Iterator[Postgres]:
    """A server for this test alone, because it stalls."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def database_url(server: Postgres) -> Iterator[str]:
    """A database of that server."""
    with PostgresStores(server).fresh() as url:
        yield url


@pytest.fixture
def database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """The store, with short timeouts."""
    monkeypatch.setattr(postgresql, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(postgresql, "PING_ANSWER_SECONDS", 0.5)
    monkeypatch.setitem(OPTIONS, "connect_timeout", 2)
    with closing(Database(database_url, statement_seconds=0.5)) as database:
        yield database


def test_threads_continue_after_a_stalled_database(
    context: WorkerContext, server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_clock, "PAUSE_SECONDS", 0.05)
    tasks = [
        PeriodicTask("heartbeat", 0.05, lambda: send_heartbeat(context)),
        PeriodicTask("leases", 0.05, context.renewer.renew_all),
    ]
    for task in tasks:
        task.start()
    ended = keep_clock_synced(context.database)
    eventually(lambda: clock._reading)
    with capture_logs() as logs, server.frozen():
        eventually(lambda: {"task_failed", "clock_not_read"} <= {line["event"] for line in logs})
    before, read = row(context, Node, NODE_ID).heartbeat_at, clock._reading
    assert eventually(lambda: row(context, Node, NODE_ID).heartbeat_at > before)
    assert eventually(lambda: clock._reading is not read)
    ended.set()
    for task in tasks:
        task.stop()
