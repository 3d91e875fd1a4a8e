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
from shared.broker import Publisher
from shared.crypto import Vault
from shared.database import Database
from shared.database_clock import follow_database, keep_following
from shared.errors import Conflict
from shared.instruments import configure_instruments, serve
from shared.jobs import queues_of
from shared.logs import configure_logs
from shared.notices import Announcer
from shared.settings import Settings
from shared.store import nodes
from worker.agent_lane import AgentLane
from worker.app import app
from worker.dead_workers import free_leases, show_life
from worker.engine import DockerEngine
from worker.events import follow_events
from worker.exchanges import open_client
from worker.gathered_events import GatheringConsumer
from worker.health import TURNS, HealthWatch, open_watch
from worker.keeper import LeaseKeeper
from worker.looks import open_threads
from worker.lost_nodes import NodeWatch
from worker.node import beat
from worker.parts import Parts
from worker.resync import resync
from worker.routines import Routine, unless_clock_is_wrong
from worker.settings import WorkerSettings
from worker.sweep import sweep
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
    parts = make_parts(shared, settings, app)
    register_tasks(app, parts)
    life = show_life(shared.workers_dir, parts.keeper.owner)
    try:
        await_right_clock(parts)
        beat(parts)  # before anything else: what moved away from here while we were gone must not run twice
    except Conflict as error:
        raise SystemExit(f"worker: {error}") from None
    watch = open_watch(parts)
    routines = make_routines(parts, watch)
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
        consumer_cls=GatheringConsumer,
        loglevel=shared.log_level,
        quiet=True,  # its banner says what our own line has said
    )
    gc.freeze()  # or each full collection would look through all that a process begins with: 85 ms
    worker.start()
    parts.engine.close()  # or the routine that follows its events would not hear of the end
    for routine in routines:
        routine.stop()
    parts.looks.shutdown(cancel_futures=True)
    parts.probes.shutdown(wait=False, cancel_futures=True)
    watch.close()
    parts.http.close()  # or a request that is under way would keep us here
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


def make_parts(shared: Settings, settings: WorkerSettings, celery: Celery) -> Parts:
    """The parts of a worker of this configuration."""
    announce = Announcer(shared.broker).announce
    database = Database(shared.database, pool_size=settings.concurrency + ROUTINE_CONNECTIONS, announce=announce)
    with database.transaction() as session:
        installation = nodes.installation_id(session)
    owner = f"{settings.node}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    return Parts(
        shared=shared,
        settings=settings,
        database=database,
        vault=Vault(shared.vault_keys),
        engine=DockerEngine(settings.docker_host),
        publisher=Publisher(celery),
        keeper=LeaseKeeper(database, owner, settings.lease_seconds),
        http=open_client(),
        looks=open_threads(),
        probes=ThreadPoolExecutor(settings.concurrency, "probe"),
        installation=installation,
        lane=AgentLane(settings.concurrency),
    )


def make_routines(parts: Parts, watch: HealthWatch) -> list[Routine]:
    """What this worker does beside its jobs."""
    settings = parts.settings
    return [
        Routine("heartbeat", settings.heartbeat_seconds, lambda: beat_or_end(parts)),
        Routine("leases", settings.lease_seconds / 3, parts.keeper.renew_all),
        *_make_work(parts, watch),
    ]


def _make_work(parts: Parts, watch: HealthWatch) -> list[Routine]:
    """The routines that a worker does without while its machine's clock is wrong."""
    settings, directory = parts.settings, parts.shared.workers_dir
    work: list[tuple[str, float, Callable[[], None]]] = [
        ("workers", settings.sweep_seconds, lambda: free_leases(parts, directory)),
        ("nodes", settings.sweep_seconds, NodeWatch(parts).look),
        ("sweep", settings.sweep_seconds, lambda: sweep(parts)),
        ("health", settings.probe_seconds / len(TURNS), watch.look),
        ("resync", settings.resync_seconds, lambda: resync(parts)),
        ("events", RECONNECT_SECONDS, lambda: follow_events(parts)),
    ]
    return [Routine(name, seconds, unless_clock_is_wrong(function)) for name, seconds, function in work]


def await_right_clock(parts: Parts) -> None:
    """Read the database's clock, and wait until this machine's agrees with it.

    Raises:
        Conflict: as for `beat`.
    """
    follow_database(parts.database)
    keep_following(parts.database)
    while clock.is_wrong():
        beat(parts)  # says so
        time.sleep(parts.settings.heartbeat_seconds)


def beat_or_end(parts: Parts) -> None:
    """Beat, and end where the engine has become another one: this worker's rows are not about that."""
    try:
        beat(parts)
    except Conflict as error:
        log.critical("not_our_engine", node=parts.settings.node, why=str(error))
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
