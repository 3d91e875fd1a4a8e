"""Which faults excuse a sandbox that is not in its desired state: those of its node that outlasted the last request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from shared.models import Sandbox
from shared.states import Reason

# By an outside change to the sandbox's own container.
TOUCHES: Mapping[Reason, frozenset[str]] = {
    # Who removes one ends it first, and it may be seen in between.
    Reason.EXIT_CODE: frozenset({"container killed", "container stopped", "container removed"}),
    Reason.CONTAINER_MISSING: frozenset({"container removed"}),
    Reason.PAUSED_OUTSIDE: frozenset({"container paused", "container stopped", "container killed"}),
    Reason.RESUMED_OUTSIDE: frozenset({"container unpaused", "container started"}),
    Reason.HEALTH_TIMEOUT: frozenset({"container paused"}),
    # A sandbox that was stopped before its first boot has a container without a configuration.
    Reason.WRONG_SERVER: frozenset({"container started"}),
    Reason.START_FAILED: frozenset({"container removed"}),
    Reason.ENGINE_ERROR: frozenset({"container removed"}),
}
# An engine that is in trouble, whatever its trouble, ends nothing: it is asked again until it is well.
ANSWERS = frozenset(
    {
        "reads fail",
        "everything fails",
        "answers fail",
        "answers dropped",
        "answers cut",
        "answers late",
        "answers swallowed",
    }
)
ENGINE = frozenset({"engine restarted", "engine killed", "node power lost", "machine power lost"})
SILENCE = frozenset(
    {
        "process killed",
        "process frozen",
        "database restarted",
        "database crashed",
        "engine stalled",
        "clock stepped",
        "machine clock stepped",
        "database partitioned",
    }
)
# By what happened to a part that any sandbox may need.
TROUBLES: Mapping[Reason, frozenset[str]] = {
    Reason.EXIT_CODE: ENGINE,
    Reason.NODE_LOST: ENGINE | SILENCE | ANSWERS | {"disk full"},
    Reason.IMAGE_PULL_FAILED: ENGINE | {"pull fails", "pull slow", "disk full"},
    Reason.HEALTH_TIMEOUT: ENGINE | {"engine stalled", "disk full"},
}
# A fault is over before its last consequence is.
ECHO_SECONDS = 20.0


@dataclass(frozen=True)
class Inflicted:
    """A fault that was: times are seconds of the monotonic clock, `at` is what processes' logs call its beginning.

    Args:
        subject: what it hit: a process, a node, the sandbox of a container.
        node: the only node that it could harm; None: any.
        landed: whether it was done. One that failed is no fault; it may have had an effect all the same, so it does
            excuse.
    """

    kind: str
    subject: str
    node: str | None
    began: float
    ended: float
    at: datetime
    landed: bool = True


def is_excused(row: Sandbox, requested_at: float, log: Sequence[Inflicted]) -> bool:
    """Whether a fault that was there after the last request, and could harm the row's node, explains the row's reason.

    Args:
        requested_at: when that request was sent, by the monotonic clock; 0: unknown.
    """
    if row.reason is None:
        return False
    late = [fault for fault in log if fault.ended + ECHO_SECONDS >= requested_at]
    return any(_explains(fault, row, Reason(row.reason)) for fault in late)


def _explains(fault: Inflicted, row: Sandbox, reason: Reason) -> bool:
    if fault.node not in (None, row.node_id):
        return False
    touched = fault.kind in TOUCHES.get(reason, frozenset()) and fault.subject == row.id
    return touched or fault.kind in TROUBLES.get(reason, frozenset())
