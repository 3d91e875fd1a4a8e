"""The next step towards a wish: a pure function of the wish and of the engine as it is now (law 2)."""

from enum import StrEnum, auto

from shared.states import Desired
from worker.engine.protocol import ContainerState


class Action(StrEnum):
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


SETTLING = frozenset({Action.SETTLE_RUNNING, Action.SETTLE_PAUSED, Action.SETTLE_DELETED, Action.FAIL})

# What follows for a running container from what its agent server says.
HEARD = {
    Health.SILENT: Action.AWAIT_HEALTH,
    Health.DORMANT: Action.INITIALIZE,
    Health.READY: Action.SETTLE_RUNNING,
}


def plan(desired: Desired, state: ContainerState, *, fresh: bool, health: Health, leftovers: bool) -> Action:
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
        return Action.AWAIT_REMOVAL
    if desired == Desired.DELETED:
        return _plan_deleted(state, leftovers=leftovers)
    if state == ContainerState.ABSENT:
        return Action.CREATE if fresh else Action.FAIL
    if state == ContainerState.DEAD:
        return Action.DISCARD if fresh else Action.FAIL
    if desired.is_paused:
        return _plan_paused(desired, state, fresh=fresh, health=health)
    return _plan_running(state, fresh=fresh, health=health)


def _plan_deleted(state: ContainerState, *, leftovers: bool) -> Action:
    gone = state == ContainerState.ABSENT and not leftovers
    return Action.SETTLE_DELETED if gone else Action.REMOVE


def _plan_paused(desired: Desired, state: ContainerState, *, fresh: bool, health: Health) -> Action:
    alive = state in (ContainerState.RUNNING, ContainerState.FROZEN)
    if fresh and alive and desired == Desired.STOPPED:
        return Action.STOP
    if state != ContainerState.RUNNING:
        return Action.SETTLE_PAUSED
    if fresh:
        return Action.FREEZE
    return HEARD[health]


def _plan_running(state: ContainerState, *, fresh: bool, health: Health) -> Action:
    match state:
        case ContainerState.CREATED:
            return Action.START
        case ContainerState.RUNNING:
            return HEARD[health]
        case ContainerState.FROZEN:
            return Action.UNFREEZE if fresh else Action.SETTLE_PAUSED
        case _:
            return Action.START if fresh else Action.FAIL
