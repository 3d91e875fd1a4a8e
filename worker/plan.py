"""The next step towards a wish: a pure function of the wish and of the engine as it is now (law 2)."""

from enum import StrEnum, auto

from shared.states import Desired
from worker.containers import ContainerState


class Step(StrEnum):
    """One thing to do; the settling ones end the work on a wish."""

    CREATE = auto()
    START = auto()
    FREEZE = auto()
    # End the processes, frozen or not, and keep the files.
    STOP = auto()
    UNFREEZE = auto()
    # Remove a container that can't be started any more, and keep its volume.
    DISCARD = auto()
    # Remove container and volume.
    REMOVE = auto()
    # The engine is busy removing.
    AWAIT_REMOVAL = auto()
    # Running, and not heard of yet.
    AWAIT_HEALTH = auto()
    # It was booted for nobody, and waits to be told whose it is.
    INITIALIZE = auto()
    SETTLE_RUNNING = auto()
    SETTLE_PAUSED = auto()
    SETTLE_DELETED = auto()
    # The container is gone, or ended by itself: the wish can't be met without the owner's word.
    FAIL = auto()


class Health(StrEnum):
    """What the agent server in a running container says."""

    SILENT = auto()
    # Booted for the warm pool: it waits for its keys, and serves nobody.
    DORMANT = auto()
    # As the sandbox should be: its key opens it, or it is the pool's, and dormant.
    READY = auto()


SETTLING = frozenset({Step.SETTLE_RUNNING, Step.SETTLE_PAUSED, Step.SETTLE_DELETED, Step.FAIL})

# What follows for a running container from what its agent server says.
HEARD = {
    Health.SILENT: Step.AWAIT_HEALTH,
    Health.DORMANT: Step.INITIALIZE,
    Health.READY: Step.SETTLE_RUNNING,
}


def plan(desired: Desired, state: ContainerState, *, fresh: bool, health: Health, leftovers: bool) -> Step:
    """The next step.

    Args:
        desired: the wish.
        state: the container, as observed now.
        fresh: the wish is new and nothing was started, stopped, frozen or unfrozen for it yet. What changed behind our
            back after that is reported as it is, not fought: an operator who stopped a container had a reason.
        health: of the agent server; means something while RUNNING only.
        leftovers: without a container, its volume is still there.
    """
    if state == ContainerState.REMOVING:
        return Step.AWAIT_REMOVAL
    if desired == Desired.DELETED:
        return _plan_deleted(state, leftovers=leftovers)
    if state == ContainerState.ABSENT:
        return Step.CREATE if fresh else Step.FAIL
    if state == ContainerState.DEAD:
        return Step.DISCARD if fresh else Step.FAIL
    if desired.is_paused:
        return _plan_paused(desired, state, fresh=fresh, health=health)
    return _plan_running(state, fresh=fresh, health=health)


def _plan_deleted(state: ContainerState, *, leftovers: bool) -> Step:
    gone = state == ContainerState.ABSENT and not leftovers
    return Step.SETTLE_DELETED if gone else Step.REMOVE


def _plan_paused(desired: Desired, state: ContainerState, *, fresh: bool, health: Health) -> Step:
    alive = state in (ContainerState.RUNNING, ContainerState.FROZEN)
    if fresh and alive and desired == Desired.STOPPED:
        return Step.STOP
    if state != ContainerState.RUNNING:
        return Step.SETTLE_PAUSED
    if fresh:
        return Step.FREEZE
    return HEARD[health]


def _plan_running(state: ContainerState, *, fresh: bool, health: Health) -> Step:
    match state:
        case ContainerState.CREATED:
            return Step.START
        case ContainerState.RUNNING:
            return HEARD[health]
        case ContainerState.FROZEN:
            return Step.UNFREEZE if fresh else Step.SETTLE_PAUSED
        case _:
            return Step.START if fresh else Step.FAIL
