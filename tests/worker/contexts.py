"""Contexts of workers whose engine, executors and publisher are test doubles."""

import httpx

from shared.crypto import Vault
from shared.db.database import Database
from shared.settings import Settings
from tests.doubles import ImmediateExecutor, ManualExecutor, RecordingPublisher
from tests.factories import VAULT
from tests.fakes.engine import FakeEngine
from tests.worker.scenarios import INSTALLATION
from worker.context import Lane, LongRuns, WorkerContext
from worker.lease_renewer import LeaseRenewer, SharedCalls
from worker.settings import WorkerSettings


def make_context(
    database: Database,
    engine: FakeEngine,
    http: httpx.Client,
    shared: Settings,
    settings: WorkerSettings,
    *,
    vault: Vault = VAULT,
    publisher: RecordingPublisher | None = None,
    owner: str = "worker-1",
) -> WorkerContext:
    """The context of one worker, which has checked its engine in a heartbeat, and takes its leases as `owner`."""
    context = WorkerContext(
        shared=shared,
        settings=settings,
        database=database,
        vault=vault,
        engine=engine,
        publisher=publisher or RecordingPublisher(),
        renewer=LeaseRenewer(database, owner, 15),
        http=http,
        status_checks=ManualExecutor(),
        probes=ManualExecutor(),
        installation=INSTALLATION,
        runs=LongRuns(ImmediateExecutor()),
        agents=Lane(16),
        boots=Lane(32),
        pulls=SharedCalls(),
    )
    context.engine_checked.set()
    return context
