"""The planner: a pure function from the desired state and the observed state to the next action (law 2)."""

from enum import StrEnum, auto

from shared.states import PAUSING, Desired
from worker.engine.protocol import ContainerState


class Action(StrEnum):
    """One action; the final ones end the work on a desired state."""

    CREATE = auto()
    START = auto()
    PAUSE = auto()
    # Stop the processes, paused or not, and keep the files.
    STOP = auto()
    UNPAUSE = auto()
    # Remove a container that can't be started any more, and keep its volume.
    REMOVE_CONTAINER = auto()
    # Stop and remove a container that the door can't reach, or whose disk rejects writes; keep its volume.
    REPLACE = auto()
    # Remove container and volume.
    REMOVE = auto()
    # The engine is removing the container.
    AWAIT_REMOVAL = auto()
    # The container runs, and its agent server has not responded yet.
    AWAIT_HEALTH = auto()
    # Send the init request to a server that was booted for the warm pool.
    INITIALIZE = auto()
    WRITE_RUNNING = auto()
    WRITE_PAUSED = auto()
    WRITE_DELETED = auto()
    # The container vanished or exited by itself: only a new request of the owner continues.
    FAIL = auto()


class Health(StrEnum):
    """The health of the agent server in a running container."""

    SILENT = auto()
    # Booted for the warm pool: it serves no user before its init request.
    AWAITING_INIT = auto()
    # It accepts the sandbox's key; or the sandbox is a warm one, and its server awaits its init request.
    READY = auto()


# The desired state is reached, and no action follows.
REACHED = frozenset({Action.WRITE_RUNNING, Action.WRITE_PAUSED})
# Actions that another node's engine may execute where this one refuses.
RESCHEDULABLE = frozenset({Action.CREATE, Action.START})
# Actions that boot a sandbox or wait for its boot, of which an owner may have only a few at a time.
BOOTING = frozenset({Action.CREATE, Action.START, Action.AWAIT_HEALTH})
# Actions that pause, stop or remove a sandbox: without them, it would keep costing money after its owner ended it.
ENDING = frozenset({Action.PAUSE, Action.STOP, Action.REMOVE})
FINAL_ACTIONS = frozenset({Action.WRITE_RUNNING, Action.WRITE_PAUSED, Action.WRITE_DELETED, Action.FAIL})

# The next action for a running container, by its agent server's health.
HEALTH_ACTIONS = {
    Health.SILENT: Action.AWAIT_HEALTH,
    Health.AWAITING_INIT: Action.INITIALIZE,
    Health.READY: Action.WRITE_RUNNING,
}


def plan(
    desired: Desired,
    state: ContainerState,
    *,
    unapplied: bool,
    health: Health,
    has_volume: bool,
    is_outdated: bool = False,
    is_new: bool = False,
) -> Action:
    """The next action.

    Args:
        desired: the desired state.
        state: the container's state, as observed now.
        unapplied: the desired state is new, and no start, stop, pause or unpause was executed for it yet. Later drift
            is reported and not corrected: an operator who stopped a container had a reason.
        health: the agent server's; it counts only while the container runs.
        has_volume: the container is absent, and its volume exists.
        is_outdated: the door can't reach the container, or its disk rejects writes. A sandbox that is to run gets
            another one.
        is_new: the sandbox was never ready, so it has no files that a container must be kept for.
    """
    if state == ContainerState.REMOVING:
        return Action.AWAIT_REMOVAL
    if desired == Desired.DELETED:
        return _plan_deleted(state, has_volume=has_volume)
    if state == ContainerState.ABSENT:
        return _plan_absent(desired, unapplied=unapplied, is_new=is_new)
    if state == ContainerState.DEAD:
        return Action.REMOVE_CONTAINER if unapplied else Action.FAIL
    if desired == Desired.RUNNING:
        replaced = is_outdated and unapplied
        return Action.REPLACE if replaced else _plan_running(state, unapplied=unapplied, health=health)
    return _plan_paused(desired, state, unapplied=unapplied, health=health)


def _plan_deleted(state: ContainerState, *, has_volume: bool) -> Action:
    gone = state == ContainerState.ABSENT and not has_volume
    return Action.WRITE_DELETED if gone else Action.REMOVE


def _plan_absent(desired: Desired, *, unapplied: bool, is_new: bool) -> Action:
    # A pause must wait neither for the pull of an image nor for an engine that creates no containers.
    if is_new and desired in PAUSING:
        return Action.WRITE_PAUSED
    return Action.CREATE if unapplied else Action.FAIL


def _plan_paused(desired: Desired, state: ContainerState, *, unapplied: bool, health: Health) -> Action:
    alive = state in (ContainerState.RUNNING, ContainerState.PAUSED)
    if unapplied and alive and desired == Desired.STOPPED:
        return Action.STOP
    if state != ContainerState.RUNNING:
        return Action.WRITE_PAUSED
    if unapplied:
        return Action.PAUSE
    return HEALTH_ACTIONS[health]


def _plan_running(state: ContainerState, *, unapplied: bool, health: Health) -> Action:
    match state:
        case ContainerState.CREATED:
            return Action.START
        case ContainerState.RUNNING:
            return HEALTH_ACTIONS[health]
        case ContainerState.PAUSED:
            return Action.UNPAUSE if unapplied else Action.WRITE_PAUSED
        case _:
            return Action.START if unapplied else Action.FAIL
