"""`python -m worker`: the worker beside one Docker Engine."""

import gc

if __name__ == "__main__":
    # What imports create is permanent, and collections would take a fifth of their time.
    gc.disable()

import os
import signal
import sys
import uuid
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial

import structlog
from celery import Celery

from shared import descriptors
from shared.agent_server.door import open_access
from shared.backup.keys import read_vault
from shared.changes.notifier import ChangeNotifier
from shared.cli.process_settings import read_settings
from shared.crypto import Vault
from shared.db import unfinished_restore
from shared.db.database import Database
from shared.db.waiting import await_schema
from shared.errors import Conflict, Invalid, Unavailable
from shared.observability.correlation import configure_traces
from shared.observability.logs import configure_logs
from shared.observability.metrics import configure_instruments, serve
from shared.queue.broker import Publisher
from shared.queue.jobs import queues_of
from shared.reasons import more
from shared.settings import Settings
from worker.agent_server.transport import open_client
from worker.celery_app import app
from worker.celery_consumer import JobConsumer
from worker.context import Lane, LongRuns, WorkerContext
from worker.engine import kernel_limits
from worker.engine.disk_engine import DiskEngine
from worker.engine.protocol import Engine, EngineRefused
from worker.engine.requirements import find_disk_shortage
from worker.lease_renewer import LeaseRenewer, SharedCalls
from worker.loops.dead_workers import free_leases, lock_liveness_file
from worker.loops.door_check import DoorCheck
from worker.loops.engine_events import follow_events
from worker.loops.failover import NodeFailureDetector
from worker.loops.health_monitor import SHARDS, LivenessMonitor, open_monitor
from worker.loops.heartbeat import send_heartbeat
from worker.loops.periodic import PeriodicTask, unless_clock_is_wrong
from worker.loops.recheck import open_threads
from worker.loops.resync import resync
from worker.loops.stale_containers import find_unreaped
from worker.loops.sweep import sweep
from worker.network.addresses import make_bridge
from worker.network.firewall import FilteredFirewall, FirewallError, LocalFirewall
from worker.network.isolation import IsolationContext, NetworkIsolation
from worker.network.protocol import Isolation
from worker.network.proxy import EgressProxy
from worker.settings import WorkerSettings
from worker.startup import await_installation, await_right_clock, await_store, check_runtimes
from worker.tasks import register_tasks

log = structlog.get_logger()

# Pause between the end of an event stream and the next subscription.
RECONNECT_SECONDS = 1.0
# Database connections in addition to those for jobs. Some are reserved for heartbeats and lease renewal, because there
# are more runs than connections, and all runs may wait for locks.
PERIODIC_TASK_CONNECTIONS, RESERVED_CONNECTIONS = 10, 2


def main() -> None:
    """Run the worker until a signal stops it. Running jobs finish first."""
    gc.enable()
    shared, settings = read_settings(Settings, "worker"), read_settings(WorkerSettings, "worker")
    # Celery installs its handlers later. Without a handler, process 1 of a container would ignore the signal.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    configure_logs(shared, "worker")
    descriptors.raise_limit()  # each sandbox has connections to its agent server and to the engine
    configure_instruments(shared)
    configure_traces(shared.traces_url, "agent-workspace-worker")
    if settings.metrics_port:
        serve(shared, settings.metrics_host, settings.metrics_port)
    # Access to the engine equals root access, so Celery's warning about root adds nothing.
    warnings.filterwarnings("ignore", message=".*superuser privileges")
    try:
        context = make_context(shared, settings, app)
        liveness_file = lock_liveness_file(shared.workers_dir, context.renewer.owner)
    except (Conflict, Invalid, Unavailable) as error:  # an unfinished restore, no secret key, no database, or no file
        raise SystemExit(f"worker: {error}") from None
    if os.geteuid() == 0:  # otherwise the engine filter raises them
        kernel_limits.raise_low()
    register_tasks(app, context)
    try:
        check_runtimes(context)
        await_right_clock(context)
        await_store(context, context.network.refresh)  # no container starts before its rules are written
        # Now: a sandbox that failed over while this worker was down must not run twice.
        await_store(context, partial(send_heartbeat, context))
    except Conflict as error:
        raise SystemExit(f"worker: {error} {more('a-worker-exits-because-of-its-engine-or-its-name')}") from None
    except EngineRefused as error:
        raise SystemExit(f"worker: {error} {more('a-worker-exits-because-of-a-runtime')}") from None
    monitor, door = open_monitor(context), DoorCheck(context.http, settings.door_url)
    context.impairment_checks.extend([door.find_problem, monitor.find_cut_off, partial(find_unreaped, context)])
    periodic_tasks = make_periodic_tasks(context, monitor, door)
    for task in periodic_tasks:
        task.start()
    process = os.environ.get("PROCESS", "worker")
    shared.readiness_file(process).touch()
    log.info("working", node=settings.node, engine=settings.docker_host, concurrency=settings.concurrency)
    app.conf.worker_enable_remote_control = settings.remote_control
    worker = app.Worker(
        pool="threads",
        concurrency=settings.concurrency,
        queues=queues_of(settings.node),
        hostname=f"{process}@{settings.node}",
        without_mingle=True,
        without_gossip=True,
        task_events=True,
        consumer_cls=JobConsumer,
        loglevel=shared.log_level.upper(),
        quiet=True,  # the log line above replaces Celery's banner
    )
    gc.freeze()  # otherwise each full collection scans all objects created at startup: 85 ms
    worker.start()
    context.runs.close()
    context.engine.close()  # ends the event stream, and with it the task that follows it
    for task in periodic_tasks:
        task.stop()
    context.status_checks.shutdown(cancel_futures=True)
    context.probes.shutdown(wait=False, cancel_futures=True)
    monitor.close()
    context.http.close()  # else a pending request delays the exit
    liveness_file.close()
    raise SystemExit(worker.exitcode)


def make_context(shared: Settings, settings: WorkerSettings, celery: Celery) -> WorkerContext:
    publish = ChangeNotifier(shared.broker).publish
    database = Database(shared.database, pool_size=settings.concurrency + PERIODIC_TASK_CONNECTIONS, publish=publish)
    reserve = Database(shared.database, pool_size=RESERVED_CONNECTIONS)
    await_schema(database, settings.database_wait_seconds)
    unfinished_restore.require_finished(database)
    installation = await_installation(database, settings.database_wait_seconds)
    engine = DiskEngine(settings.docker_host, installation, settings.engine_data_dir)
    owner = f"{settings.node}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    vault = read_vault(shared)
    network = make_network(shared, settings, installation, database, vault, engine)
    return WorkerContext(
        shared=shared,
        settings=settings,
        database=database,
        vault=vault,
        engine=engine,
        publisher=Publisher(celery),
        renewer=LeaseRenewer(reserve, owner, settings.lease_seconds),
        http=open_client(open_access(vault, shared.door_ca)),
        status_checks=open_threads(),
        probes=ThreadPoolExecutor(settings.node_capacity, "probe"),
        installation=installation,
        # A thread for each sandbox, and one for each owner's runs on conversations.
        runs=LongRuns(ThreadPoolExecutor(2 * settings.node_capacity + settings.concurrency, "run")),
        agents=Lane(max(1, settings.concurrency // 2)),
        boots=Lane(settings.concurrency),
        pulls=SharedCalls(),
        network=network,
        node_checks=[network.check, partial(find_disk_shortage, engine, settings.min_free_disk_bytes)],
        impairment_checks=[lambda: network.impairment, vault.find_problem],
    )


def make_network(
    shared: Settings, settings: WorkerSettings, installation: str, database: Database, vault: Vault, engine: Engine
) -> Isolation:
    """Create the network isolation of this node's sandboxes; none if AW_NETWORK_ISOLATION is off."""
    bridge = make_bridge(shared, installation, settings.node)
    firewall = LocalFirewall(bridge) if os.geteuid() == 0 else FilteredFirewall(settings.docker_host)
    if not shared.network_isolation:
        with suppress(FirewallError):  # rules of an earlier run would still deny traffic
            firewall.remove()
        log.warning(
            "network_not_isolated",
            advice="AW_NETWORK_ISOLATION is off: sandboxes reach each other, this machine, its network and metadata",
        )
        return Isolation()
    return NetworkIsolation(
        IsolationContext(
            shared,
            settings.node,
            settings.sandbox_dns,
            settings.door_port,
            installation,
            database,
            vault,
            engine,
            firewall,
            bridge,
            EgressProxy(shared.egress_folder, shared.sandbox_gateway, settings.egress_port, firewall),
        )
    )


def make_periodic_tasks(context: WorkerContext, monitor: LivenessMonitor, door: DoorCheck) -> list[PeriodicTask]:
    """Create the periodic tasks that this worker runs beside its jobs."""
    settings, detector = context.settings, NodeFailureDetector(context)
    send = partial(send_heartbeat_or_exit, replace(context, database=context.renewer.database), detector)
    heartbeat = PeriodicTask("heartbeat", settings.heartbeat_seconds, send)
    return [
        PeriodicTask("network", settings.resync_seconds, lambda: refresh_network(context, heartbeat)),
        PeriodicTask("door", settings.heartbeat_seconds, lambda: check_door(door, heartbeat)),
        heartbeat,
        PeriodicTask("leases", settings.lease_seconds / 3, context.renewer.renew_all),
        *_make_clock_dependent(context, monitor, detector),
    ]


def refresh_network(context: WorkerContext, heartbeat: PeriodicTask) -> None:
    """Compare and correct the network rules. If that closes or opens the node, send a heartbeat immediately."""
    if context.network.refresh():
        heartbeat.wake()


def check_door(door: DoorCheck, heartbeat: PeriodicTask) -> None:
    """Check the node's door. If it goes away or is back, send a heartbeat immediately."""
    if door.run():
        heartbeat.wake()


def _make_clock_dependent(
    context: WorkerContext, monitor: LivenessMonitor, detector: NodeFailureDetector
) -> list[PeriodicTask]:
    """Periodic tasks that do nothing while this machine's clock is wrong."""
    settings, directory = context.settings, context.shared.workers_dir
    functions: list[tuple[str, float, Callable[[], None]]] = [
        ("workers", settings.sweep_seconds, lambda: free_leases(context, directory)),
        ("nodes", settings.sweep_seconds, detector.check),
        ("sweep", settings.sweep_seconds, lambda: sweep(context)),
        ("health", settings.health_probe_seconds / len(SHARDS), monitor.probe_next_shard),
        ("resync", settings.resync_seconds, lambda: resync(context)),
        ("events", RECONNECT_SECONDS, lambda: follow_events(context)),
    ]
    return [PeriodicTask(name, seconds, unless_clock_is_wrong(function)) for name, seconds, function in functions]


def send_heartbeat_or_exit(context: WorkerContext, detector: NodeFailureDetector) -> None:
    """Send a heartbeat, and end the process if the engine was replaced: this worker's rows describe the old one."""
    try:
        send_heartbeat(context)
        detector.record_stored()
    except Conflict as error:
        log.critical("engine_mismatch", node=context.settings.node, why=str(error))
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
