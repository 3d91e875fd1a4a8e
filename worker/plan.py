"""The next step towards a wish: a pure function of the wish and of the engine as it is now (law 2)."""

from enum import StrEnum, auto

from shared.states import Desired
from worker.containers import ContainerState


class Step(StrEnum):
    """One thing to do; the settling ones end the work on a wish."""

    CREATE = auto()
    START = auto()
    FREEZE = auto()
    UNFREEZE = auto()
    # Remove a container that can't be started any more, and keep its volume.
    DISCARD = auto()
    # Remove container and volume.
    REMOVE = auto()
    # The engine is busy removing.
    AWAIT_REMOVAL = auto()
    # Running, and not heard of yet.
    AWAIT_HEALTH = auto()
    SETTLE_RUNNING = auto()
    SETTLE_PAUSED = auto()
    SETTLE_DELETED = auto()
    # The container is gone, or ended by itself: the wish can't be met without the owner's word.
    FAIL = auto()


SETTLING = frozenset({Step.SETTLE_RUNNING, Step.SETTLE_PAUSED, Step.SETTLE_DELETED, Step.FAIL})


def plan(desired: Desired, state: ContainerState, *, fresh: bool, healthy: bool, leftovers: bool) -> Step:
    """The next step.

    Args:
        desired: the wish.
        state: the container, as observed now.
        fresh: the wish is new and nothing was started, frozen or unfrozen for it yet. What changed behind our back
            after that is reported as it is, not fought: an operator who stopped a container had a reason.
        healthy: the agent server answered with this sandbox's key; means something while RUNNING only.
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
    if desired == Desired.PAUSED:
        return _plan_paused(state, fresh=fresh, healthy=healthy)
    return _plan_running(state, fresh=fresh, healthy=healthy)


def _plan_deleted(state: ContainerState, *, leftovers: bool) -> Step:
    gone = state == ContainerState.ABSENT and not leftovers
    return Step.SETTLE_DELETED if gone else Step.REMOVE


def _plan_paused(state: ContainerState, *, fresh: bool, healthy: bool) -> Step:
    if state != ContainerState.RUNNING:
        return Step.SETTLE_PAUSED
    if fresh:
        return Step.FREEZE
    return Step.SETTLE_RUNNING if healthy else Step.AWAIT_HEALTH


def _plan_running(state: ContainerState, *, fresh: bool, healthy: bool) -> Step:
    match state:
        case ContainerState.CREATED:
            return Step.START
        case ContainerState.RUNNING:
            return Step.SETTLE_RUNNING if healthy else Step.AWAIT_HEALTH
        case ContainerState.FROZEN:
            return Step.UNFREEZE if fresh else Step.SETTLE_PAUSED
        case _:
            return Step.START if fresh else Step.FAIL
