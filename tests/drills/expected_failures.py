"""The faults that explain why a sandbox misses its desired state: those on its node that outlast the last request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from shared.models import Sandbox
from shared.states import Reason

# The outside changes to the sandbox's own container that explain each reason.
TOUCHES: Mapping[Reason, frozenset[str]] = {
    # A removal first stops the container, and a check may run before it is removed.
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
# An engine's failing responses end no sandbox: the service retries until the engine recovers.
ANSWERS = frozenset(
    {
        "reads fail",
        "everything fails",
        "responses fail",
        "responses dropped",
        "responses cut",
        "responses late",
        "responses swallowed",
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
        "service clocks stepped",
        "database partitioned",
    }
)
# The faults of shared parts that explain each reason.
TROUBLES: Mapping[Reason, frozenset[str]] = {
    Reason.EXIT_CODE: ENGINE,
    Reason.NODE_LOST: ENGINE | SILENCE | ANSWERS | {"disk full"},
    Reason.IMAGE_PULL_FAILED: ENGINE | {"pull fails", "pull slow", "disk full"},
    Reason.HEALTH_TIMEOUT: ENGINE | {"engine stalled", "disk full"},
}
# The time for which consequences may follow a fault.
ECHO_SECONDS = 20.0


@dataclass(frozen=True)
class InjectedFault:
    """A fault of a run. Times are seconds of the monotonic clock; `at` is the beginning by the clock of the logs.

    Args:
        subject: the target: a process, a node, or the sandbox of a container.
        node: the only node that the fault could affect; None: any.
        effective: whether the fault was injected. A fault that was not is not counted, but still explains, because it
            may have had an effect.
    """

    kind: str
    subject: str
    node: str | None
    began: float
    ended: float
    at: datetime
    effective: bool = True


def is_expected(row: Sandbox, requested_at: float, log: Sequence[InjectedFault]) -> bool:
    """Whether the row's reason is explained by a fault that may have affected its node after the last request.

    Args:
        requested_at: when the last request was sent, by the monotonic clock; 0: unknown.
    """
    if row.reason is None:
        return False
    late = [fault for fault in log if fault.ended + ECHO_SECONDS >= requested_at]
    return any(_explains(fault, row, Reason(row.reason)) for fault in late)


def _explains(fault: InjectedFault, row: Sandbox, reason: Reason) -> bool:
    if fault.node not in (None, row.node_id):
        return False
    touched = fault.kind in TOUCHES.get(reason, frozenset()) and fault.subject == row.id
    return touched or fault.kind in TROUBLES.get(reason, frozenset())
