"""Store against engine: what differs is looked at again, what no row owns is removed."""

from collections.abc import Iterable

import structlog
from sqlmodel import col, select

from shared import leases
from shared.models import Sandbox
from shared.states import Desired, PauseKind, Status
from shared.store import sandboxes
from shared.store.sandboxes import Standing
from worker.containers import ContainerState, Listed
from worker.looks import check, look
from worker.parts import Parts
from worker.sandbox_container import NAME_PREFIX, container_name
from worker.warm_pool import retire_outdated

log = structlog.get_logger()

STOPPED = {ContainerState.EXITED, ContainerState.CREATED}
EXPECTED = {
    Status.RUNNING: {ContainerState.RUNNING},
    Status.ERROR: {*STOPPED, ContainerState.FROZEN, ContainerState.ABSENT, ContainerState.DEAD},
}


def resync(parts: Parts) -> None:
    """Compare once. The engine is listed first: a container's row is always older than the container."""
    listed = {item.name: item for item in parts.engine.list_containers(parts.installation)}
    volumes = set(parts.engine.list_volumes(parts.installation))
    with parts.database.reading() as session:
        rows = sandboxes.on_node(session, parts.settings.node)
    for row in rows:
        name = container_name(row.id)
        if _is_attended_to(row):
            continue
        if row.desired == Desired.DELETED or row.generation != row.observed_generation:
            check(parts, row.id)
        elif _differs(row, listed.get(name), has_volume=name in volumes):
            look(parts, row.id)
    retire_outdated(parts, listed)
    _reap(parts, {container_name(row.id) for row in rows}, {*listed, *volumes})


def _is_attended_to(row: Standing) -> bool:
    """Whether somebody is at it, or will be."""
    return row.due_at is not None or leases.is_held(row.lease_until)


def _differs(row: Standing, item: Listed | None, *, has_volume: bool) -> bool:
    state = item.state if item else ContainerState.ABSENT
    if row.status == Status.PAUSED:
        # A frozen one that only its files are left of, after a reboot say, is another kind of paused.
        return state not in ({ContainerState.FROZEN} if row.pause_kind == PauseKind.FROZEN else STOPPED)
    never_was = row.status == Status.ERROR and row.ready_at is None
    return state not in EXPECTED.get(Status(row.status), set()) or (never_was and (item is not None or has_volume))


def _reap(parts: Parts, owned: set[str], found: Iterable[str]) -> None:
    unknown = {name.removeprefix(NAME_PREFIX) for name in found if name not in owned and name.startswith(NAME_PREFIX)}
    for sandbox_id in unknown - _elsewhere(parts, unknown):
        log.warning("reaping", sandbox=sandbox_id)
        parts.engine.remove(container_name(sandbox_id))


def _elsewhere(parts: Parts, ids: set[str]) -> set[str]:
    """Those that another node's rows own: the worker of this engine may have been given another name."""
    alive = select(Sandbox.id).where(col(Sandbox.id).in_(ids), Sandbox.status != Status.DELETED)
    with parts.database.reading() as session:
        return set(session.exec(alive).all()) if ids else set()
