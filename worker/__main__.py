"""`python -m worker`: the worker beside one Docker Engine."""

import gc
import os
import signal
import time
import uuid
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog
from celery import Celery

from shared import clock
from shared.changes.notifier import ChangeNotifier
from shared.crypto import Vault
from shared.db.database import Database
from shared.db.database_clock import follow_database, keep_following
from shared.errors import Conflict
from shared.nodes import registry as node_registry
from shared.observability.logs import configure_logs
from shared.observability.metrics import configure_instruments, serve
from shared.queue.broker import Publisher
from shared.queue.jobs import queues_of
from shared.settings import Settings
from worker.agent_server.exchange import open_client
from worker.celery_app import app
from worker.celery_consumer import EventBatchingConsumer
from worker.context import WorkerContext
from worker.engine.docker_engine import DockerEngine
from worker.leasing.agent_lane import AgentLane
from worker.leasing.lease_renewer import LeaseRenewer
from worker.loops.dead_workers import free_leases, show_life
from worker.loops.engine_events import follow_events
from worker.loops.health_monitor import TURNS, LivenessMonitor, open_watch
from worker.loops.heartbeat import beat
from worker.loops.node_failover import NodeFailureDetector
from worker.loops.periodic import PeriodicTask, unless_clock_is_wrong
from worker.loops.recheck import open_threads
from worker.loops.resync import resync
from worker.loops.sweep import sweep
from worker.settings import WorkerSettings
from worker.tasks import register_tasks

log = structlog.get_logger()

# Between the end of an event stream and the next.
RECONNECT_SECONDS = 1.0
# Connections to the database besides those of jobs: a lease is renewed even while every job waits for a lock.
ROUTINE_CONNECTIONS = 12


def main() -> None:
    """Work until told to stop; jobs that run then are finished first."""
    shared, settings = Settings(), WorkerSettings()
    configure_logs(shared, "worker")
    configure_instruments(shared, "worker")
    if settings.metrics_port:
        serve(shared, settings.metrics_host, settings.metrics_port)
    # Root or the docker group: whoever speaks to the engine is as good as root anyway.
    warnings.filterwarnings("ignore", message=".*superuser privileges")
    warn_of_shared_host(shared, settings)
    context = make_parts(shared, settings, app)
    register_tasks(app, context)
    life = show_life(shared.workers_dir, context.renewer.owner)
    try:
        await_right_clock(context)
        beat(context)  # before anything else: what moved away from here while we were gone must not run twice
    except Conflict as error:
        raise SystemExit(f"worker: {error}") from None
    watch = open_watch(context)
    routines = make_routines(context, watch)
    for routine in routines:
        routine.start()
    log.info("working", node=settings.node, engine=settings.docker_host, concurrency=settings.concurrency)
    worker = app.Worker(
        pool="threads",
        concurrency=settings.concurrency,
        queues=queues_of(settings.node),
        hostname=f"{os.environ.get('PROCESS', 'worker')}@{settings.node}",
        without_mingle=True,
        without_gossip=True,
        task_events=True,
        consumer_cls=EventBatchingConsumer,
        loglevel=shared.log_level,
        quiet=True,  # its banner says what our own line has said
    )
    gc.freeze()  # or each full collection would look through all that a process begins with: 85 ms
    worker.start()
    context.engine.close()  # or the routine that follows its events would not hear of the end
    for routine in routines:
        routine.stop()
    context.looks.shutdown(cancel_futures=True)
    context.probes.shutdown(wait=False, cancel_futures=True)
    watch.close()
    context.http.close()  # or a request that is under way would keep us here
    life.close()
    raise SystemExit(worker.exitcode)


def warn_of_shared_host(shared: Settings, settings: WorkerSettings) -> None:
    """Log a warning if browsers reach the API and this node's sandboxes under one host: cookies don't tell ports."""
    if settings.names_host_of(shared.public_url):
        log.warning(
            "host_shared_with_api",
            api=shared.public_url,
            node_address=settings.node_address,
            host_in_urls=settings.host_in_urls,
            advice="set AW_NODE_ADDRESS or AW_ADVERTISED_HOST to another host: browsers send logins to all its ports",
        )


def make_parts(shared: Settings, settings: WorkerSettings, celery: Celery) -> WorkerContext:
    """The parts of a worker of this configuration."""
    announce = ChangeNotifier(shared.broker).announce
    database = Database(shared.database, pool_size=settings.concurrency + ROUTINE_CONNECTIONS, announce=announce)
    with database.transaction() as session:
        installation = node_registry.installation_id(session)
    owner = f"{settings.node}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    return WorkerContext(
        shared=shared,
        settings=settings,
        database=database,
        vault=Vault(shared.vault_keys),
        engine=DockerEngine(settings.docker_host),
        publisher=Publisher(celery),
        renewer=LeaseRenewer(database, owner, settings.lease_seconds),
        http=open_client(),
        looks=open_threads(),
        probes=ThreadPoolExecutor(settings.concurrency, "probe"),
        installation=installation,
        lane=AgentLane(settings.concurrency),
    )


def make_routines(context: WorkerContext, watch: LivenessMonitor) -> list[PeriodicTask]:
    """What this worker does beside its jobs."""
    settings = context.settings
    return [
        PeriodicTask("heartbeat", settings.heartbeat_seconds, lambda: renew_or_end(context)),
        PeriodicTask("leases", settings.lease_seconds / 3, context.renewer.renew_all),
        *_make_work(context, watch),
    ]


def _make_work(context: WorkerContext, watch: LivenessMonitor) -> list[PeriodicTask]:
    """The routines that a worker does without while its machine's clock is wrong."""
    settings, directory = context.settings, context.shared.workers_dir
    work: list[tuple[str, float, Callable[[], None]]] = [
        ("workers", settings.sweep_seconds, lambda: free_leases(context, directory)),
        ("nodes", settings.sweep_seconds, NodeFailureDetector(context).look),
        ("sweep", settings.sweep_seconds, lambda: sweep(context)),
        ("health", settings.health_probe_seconds / len(TURNS), watch.look),
        ("resync", settings.resync_seconds, lambda: resync(context)),
        ("events", RECONNECT_SECONDS, lambda: follow_events(context)),
    ]
    return [PeriodicTask(name, seconds, unless_clock_is_wrong(function)) for name, seconds, function in work]


def await_right_clock(context: WorkerContext) -> None:
    """Read the database's clock, and wait until this machine's agrees with it.

    Raises:
        Conflict: as for `beat`.
    """
    follow_database(context.database)
    keep_following(context.database)
    while clock.is_wrong():
        beat(context)  # says so
        time.sleep(context.settings.heartbeat_seconds)


def renew_or_end(context: WorkerContext) -> None:
    """Beat, and end where the engine has become another one: this worker's rows are not about that."""
    try:
        beat(context)
    except Conflict as error:
        log.critical("not_our_engine", node=context.settings.node, why=str(error))
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
