"""Comparisons of the engines' containers and volumes with the rows."""

from collections import Counter
from collections.abc import Iterator, Mapping

from shared.models import Sandbox
from shared.states import PauseKind, Reason, Status
from tests.drills.engine_listing import SANDBOX_LABEL, sandbox_name
from tests.drills.evidence import Evidence

# Docker's names of states, defined again so that the checker does not depend on the product.
ABSENT, RUNNING, FROZEN = "absent", "running", "paused"
STOPPED = frozenset({"created", "exited"})


def doubles(evidence: Evidence) -> Iterator[str]:
    """Sandboxes with more than one container."""
    counts = Counter(item.labels.get(SANDBOX_LABEL, item.name) for item in evidence.containers)
    for sandbox_id, count in counts.items():
        if count > 1:
            yield f"sandbox {sandbox_id} has {count} containers"


def orphans(evidence: Evidence) -> Iterator[str]:
    """Containers and volumes that no row owns, or that a search by label would miss."""
    yield from evidence.strays
    owned = {sandbox_name(row.id) for row in evidence.sandboxes if _may_own(row) or _is_quarantined(row, evidence)}
    for item in evidence.containers:
        if item.name not in owned:
            yield f"container {item.name} belongs to no row"
    kept = {sandbox_name(row.id) for row in evidence.sandboxes if _keeps_volume(row)}
    for name in evidence.volumes:
        if name not in owned | kept:
            yield f"volume {name} belongs to no row"


def _keeps_volume(row: Sandbox) -> bool:
    """Whether the volume is quarantined: its warm sandbox's container was removed from outside (decision 47)."""
    return row.owner_id is None and _has_foreign_container(row)


def _is_quarantined(row: Sandbox, evidence: Evidence) -> bool:
    """Whether the container is quarantined: it was resumed from outside before the idle deadline (decision 47)."""
    return row.owner_id is not None and _has_foreign_container(row) and row.id in evidence.resumed


def _has_foreign_container(row: Sandbox) -> bool:
    return (row.status, row.reason) == (Status.DELETED, Reason.ALREADY_USED)


def _may_own(row: Sandbox) -> bool:
    never_was = row.status == Status.ERROR and row.ready_at is None
    return row.status != Status.DELETED and not never_was


def untrue(evidence: Evidence) -> Iterator[str]:
    """Rows whose status does not match their container and volume."""
    states: Mapping[str, str] = {item.name: item.state for item in evidence.containers}
    for row in evidence.sandboxes:
        state = states.get(sandbox_name(row.id), ABSENT)
        in_quarantine = {FROZEN, *STOPPED} if _is_quarantined(row, evidence) else set()
        if state not in _true_states(row) | in_quarantine:
            yield f"sandbox {row.id} has the status {row.status} ({row.pause_kind}); its container is {state}"
        if _needs_volume(row) and sandbox_name(row.id) not in evidence.volumes:
            yield f"sandbox {row.id} has the status {row.status}; its volume does not exist"


def _needs_volume(row: Sandbox) -> bool:
    """Whether the sandbox must have a volume. One that was paused before it was ever ready need not have one."""
    was_ready = row.ready_at is not None
    return row.status == Status.RUNNING or (row.status == Status.PAUSED and was_ready)


def _true_states(row: Sandbox) -> set[str]:
    match Status(row.status):
        case Status.RUNNING:
            return {RUNNING}
        case Status.PAUSED:
            stopped = {*STOPPED} if _needs_volume(row) else {*STOPPED, ABSENT}
            return {FROZEN} if row.pause_kind == PauseKind.FROZEN else stopped
        case Status.ERROR:
            return {ABSENT} if row.ready_at is None else {*STOPPED, ABSENT}
        case Status.DELETED:
            return {ABSENT}
        case _:
            return set()  # a transitional status, which is never settled
