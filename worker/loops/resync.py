"""Resync of store and engine: rows that differ are checked, containers of deleted or moved sandboxes are removed."""

from collections.abc import Collection, Iterable, Mapping

import structlog

from shared.leasing import leases
from shared.retention import tombstones
from shared.sandboxes import deadlines
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes.queries import ResyncRow
from shared.sql import clock_steps
from shared.states import Desired, PauseKind, Reason, Status
from worker.context import WorkerContext
from worker.engine.docker_engine import own_name
from worker.engine.protocol import ContainerState, ContainerSummary
from worker.loops.attempts import attempt_each, forget_others
from worker.loops.quarantine import pause_running, quarantine_unknown
from worker.loops.recheck import check, recheck, replace_container
from worker.loops.stale_containers import reap_stale
from worker.loops.warm_pool import remove_outdated
from worker.sandboxes.container_spec import NAME_PREFIX, container_name, is_outdated
from worker.sandboxes.failed_disks import find_repairs, forget_repairs, record_repair

log = structlog.get_logger()

# Max length of a volume's name in Docker. This service's names are shorter.
MAX_NAME_LENGTH = 255
STOPPED = {ContainerState.EXITED, ContainerState.CREATED}
EXPECTED = {
    Status.RUNNING: {ContainerState.RUNNING},
    Status.ERROR: {*STOPPED, ContainerState.PAUSED, ContainerState.ABSENT, ContainerState.DEAD},
}


def resync(context: WorkerContext) -> None:
    """Compare store and engine. The engine is listed first: a container's row is always older than the container.

    Nothing is compared before a heartbeat has found that the engine is this node's.
    """
    if not context.engine_checked.is_set():
        return
    listed = {item.name: item for item in context.engine.list_containers(context.installation)}
    volumes = set(context.engine.list_volumes(context.installation))
    unlabelled = set(context.engine.list_unlabelled_volumes())
    with context.database.reading() as session:
        rows = sandbox_queries.on_node(session, context.settings.node)
    endpoint = context.network.endpoint
    named = {name: item for name, item in listed.items() if _own_name(item) == name}
    running = {name for name, item in named.items() if item.state == ContainerState.RUNNING}
    repairs = find_repairs(context, running & {container_name(row.id) for row in rows if _runs(row)})
    for row in rows:
        name = container_name(row.id)
        if row.due_at is not None or leases.is_leased(row.lease_until):
            continue
        if row.desired == Desired.DELETED or row.generation != row.observed_generation:
            check(context, row.id)
        elif name in repairs:
            replace_container(context, row.id)
            record_repair(context, name)
        elif _runs(row) and name in named and is_outdated(named[name], endpoint):
            replace_container(context, row.id)
        elif _differs(row, named.get(name), has_volume=name in volumes | unlabelled):
            recheck(context, row.id)
    _correct_deadlines(context, rows)
    forget_others(context, {*listed, *volumes, *unlabelled})
    forget_repairs(context, volumes)
    remove_outdated(context, listed)
    owned = {container_name(row.id) for row in rows}
    # In each resync, because a worker that stalled during an action may create such a container later.
    moved = set(map(container_name, reap_stale(context, {*listed, *volumes, *unlabelled} - owned)))
    # Their rows' checks give them their names back, unless another container has them.
    renamed = {name for name, item in listed.items() if name not in named and _own_name(item) in owned - named.keys()}
    unowned = {name for name in {*listed, *volumes} - owned - moved - renamed if _is_own_name(name)}
    _handle_unowned(context, {name: listed.get(name) for name in unowned})
    _reap(context, {name for name in unlabelled - owned - moved if _is_own_name(name)})


def _runs(row: ResyncRow) -> bool:
    return (row.desired, row.status) == (Desired.RUNNING, Status.RUNNING)


def _differs(row: ResyncRow, item: ContainerSummary | None, *, has_volume: bool) -> bool:
    if row.reason == Reason.NODE_LOST:
        return True  # this is its node, which is back
    state = item.state if item else ContainerState.ABSENT
    if row.status == Status.PAUSED:
        # A container paused with memory kept may have only its files left, for example after a reboot.
        return state not in ({ContainerState.PAUSED} if row.pause_kind == PauseKind.FROZEN else _stopped_states(row))
    never_was = row.status == Status.ERROR and row.ready_at is None
    return state not in EXPECTED.get(Status(row.status), set()) or (never_was and (item is not None or has_volume))


def _stopped_states(row: ResyncRow) -> set[ContainerState]:
    """The states of a stopped sandbox's container. One that was never ready may have none."""
    return {*STOPPED, ContainerState.ABSENT} if row.ready_at is None else STOPPED


def _correct_deadlines(context: WorkerContext, rows: Iterable[ResyncRow]) -> None:
    """Let idle time count from now where it counts from a later time: the database's clock was set back since."""
    present = clock_steps.latest()
    for row in rows:
        if row.deadline_at is not None and max(row.status_changed_at, row.last_active_at) > present:
            log.info("idle_time_restarted", sandbox=row.id)
            with context.database.transaction() as session:
                deadlines.count_from_now(session, row.id)


def _own_name(item: ContainerSummary) -> str:
    return own_name(item.labels, item.name)


def _is_own_name(name: str) -> bool:
    return name.startswith(NAME_PREFIX) and len(name) <= MAX_NAME_LENGTH


def _handle_unowned(context: WorkerContext, found: Mapping[str, ContainerSummary | None]) -> None:
    """Remove the containers of deleted sandboxes, and quarantine those that no row explains.

    Containers of another node's rows are paused and kept: a database from before a failover was restored.
    """
    explained = _reap(context, found)
    quarantine_unknown(context, {name: item for name, item in found.items() if name not in explained})
    pause_running(context, (found[name] for name, status in explained.items() if status != Status.DELETED))


def _reap(context: WorkerContext, names: Collection[str]) -> dict[str, str]:
    """Remove the containers of deleted sandboxes. Returns the stored status of each known sandbox, by these names."""
    with context.database.reading() as session:
        statuses = sandbox_queries.accountable(session, {name.removeprefix(NAME_PREFIX) for name in names})
    explained = {container_name(sandbox_id): status for sandbox_id, status in statuses.items()}

    def remove(name: str) -> None:
        log.warning("reaping", container=name)
        context.engine.remove(name)

    deleted = [name for name, status in explained.items() if status == Status.DELETED]
    if deleted:  # until they are gone, their rows must explain them
        with context.database.transaction() as session:
            tombstones.keep(session, [name.removeprefix(NAME_PREFIX) for name in deleted])
    attempt_each(context, deleted, remove, "not_reaped")
    return explained
