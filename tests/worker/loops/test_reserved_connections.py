"""Heartbeats and lease renewal have database connections that no job uses."""

from datetime import timedelta

from shared.clock import now
from shared.db.database import Database, StoreTimeout
from shared.models import Node
from shared.settings import Settings
from tests.factories import NODE_ID
from tests.worker.scenarios import change, hooked_context, row
from worker.__main__ import make_context, make_periodic_tasks
from worker.celery_app import app
from worker.context import WorkerContext
from worker.loops.door_check import DoorCheck
from worker.loops.health_monitor import LivenessMonitor
from worker.settings import WorkerSettings


def test_heartbeat_needs_no_connection_of_the_jobs(
    context: WorkerContext, monitor: LivenessMonitor, door: DoorCheck
) -> None:
    def wait_for_connection() -> None:
        raise StoreTimeout("too many concurrent transactions")

    change(context, Node, NODE_ID, heartbeat_at=now() - timedelta(minutes=1))
    crowded, database = hooked_context(context, 0, wait_for_connection)
    [heartbeat] = (task for task in make_periodic_tasks(crowded, monitor, door) if task._thread.name == "heartbeat")
    heartbeat._function()
    assert database.passed == 0
    assert row(context, Node, NODE_ID).heartbeat_at > now() - timedelta(seconds=30)


def test_worker_reserves_connections(settings: Settings, database: Database) -> None:
    context = make_context(settings, WorkerSettings(node=NODE_ID), app)
    assert context.database.engine is not context.renewer.database.engine
    for opened in (context.database, context.renewer.database):
        assert opened.engine.url == database.engine.url
        opened.close()
