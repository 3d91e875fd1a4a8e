"""`plan` over its whole product."""

from itertools import product

import pytest

from shared.states import Desired
from worker.engine.protocol import ContainerState as State
from worker.sandboxes.planner import FINAL_ACTIONS, Action, Health, plan

BOOLEANS = (True, False)
PRODUCT = list(product(Desired, State, BOOLEANS, Health, BOOLEANS))

# The container's state after each action: enough of an engine to execute a plan to its end.
EFFECTS = {
    Action.CREATE: State.CREATED,
    Action.START: State.RUNNING,
    Action.FREEZE: State.FROZEN,
    Action.STOP: State.EXITED,
    Action.UNFREEZE: State.RUNNING,
    Action.REMOVE_CONTAINER: State.ABSENT,
    Action.REMOVE: State.ABSENT,
    Action.AWAIT_REMOVAL: State.ABSENT,
}


@pytest.mark.parametrize(("desired", "state", "fresh", "health", "leftovers"), PRODUCT)
def test_plan_has_an_action_for_every_state(
    desired: Desired, state: State, fresh: bool, health: Health, leftovers: bool
) -> None:
    assert plan(desired, state, fresh=fresh, health=health, leftovers=leftovers) in Action


@pytest.mark.parametrize(("desired", "state", "fresh"), list(product(Desired, State, BOOLEANS)))
def test_every_plan_ends(desired: Desired, state: State, fresh: bool) -> None:
    """If every action succeeds, every plan ends, and a new desired state is reached."""
    was_fresh, leftovers = fresh, state != State.ABSENT
    for _ in range(8):
        action = plan(
            desired,
            state,
            fresh=fresh,
            health=Health.READY if state == State.RUNNING else Health.SILENT,
            leftovers=leftovers,
        )
        if action in FINAL_ACTIONS:
            break
        state = EFFECTS[action]
        leftovers = leftovers and action != Action.REMOVE
        fresh = fresh and action not in (Action.START, Action.STOP, Action.FREEZE, Action.UNFREEZE)
    reached = {
        Desired.RUNNING: Action.SETTLE_RUNNING,
        Desired.PAUSED: Action.SETTLE_PAUSED,
        Desired.STOPPED: Action.SETTLE_PAUSED,
        Desired.DELETED: Action.SETTLE_DELETED,
    }
    assert action in FINAL_ACTIONS
    if was_fresh:
        assert action == reached[desired]
        assert desired != Desired.STOPPED or state in (State.CREATED, State.EXITED)


@pytest.mark.parametrize(("desired", "state", "fresh", "health", "leftovers"), PRODUCT)
def test_plan_ends_only_with_the_observed_state(
    desired: Desired, state: State, fresh: bool, health: Health, leftovers: bool
) -> None:
    action = plan(desired, state, fresh=fresh, health=health, leftovers=leftovers)
    if action == Action.SETTLE_RUNNING:
        assert state == State.RUNNING
        assert health == Health.READY
    if action == Action.SETTLE_PAUSED:
        assert state in (State.FROZEN, State.CREATED, State.EXITED)
    if action == Action.SETTLE_DELETED:
        assert (state, leftovers) == (State.ABSENT, False)
        assert desired == Desired.DELETED


@pytest.mark.parametrize(("desired", "state", "health", "leftovers"), list(product(Desired, State, Health, BOOLEANS)))
def test_drift_is_reported_and_not_corrected(desired: Desired, state: State, health: Health, leftovers: bool) -> None:
    action = plan(desired, state, fresh=False, health=health, leftovers=leftovers)
    if desired == Desired.DELETED:
        assert action in (Action.REMOVE, Action.AWAIT_REMOVAL, Action.SETTLE_DELETED)
    else:
        # START continues after a worker that died between create and start.
        assert action not in (
            Action.CREATE,
            Action.STOP,
            Action.FREEZE,
            Action.UNFREEZE,
            Action.REMOVE_CONTAINER,
            Action.REMOVE,
        )
        assert action != Action.START or state == State.CREATED


@pytest.mark.parametrize(("state", "fresh", "health"), list(product(State, BOOLEANS, Health)))
def test_files_are_removed_by_a_delete_only(state: State, fresh: bool, health: Health) -> None:
    for desired in set(Desired) - {Desired.DELETED}:
        assert plan(desired, state, fresh=fresh, health=health, leftovers=True) != Action.REMOVE


@pytest.mark.parametrize(("fresh", "health", "leftovers"), list(product(BOOLEANS, Health, BOOLEANS)))
def test_delete_ends_when_container_and_volume_are_gone(fresh: bool, health: Health, leftovers: bool) -> None:
    for state in set(State) - {State.ABSENT, State.REMOVING}:
        assert plan(Desired.DELETED, state, fresh=fresh, health=health, leftovers=leftovers) == Action.REMOVE
    absent = plan(Desired.DELETED, State.ABSENT, fresh=fresh, health=health, leftovers=leftovers)
    assert absent == (Action.REMOVE if leftovers else Action.SETTLE_DELETED)


@pytest.mark.parametrize(("desired", "state", "fresh"), list(product(Desired, State, BOOLEANS)))
def test_server_is_initialized_only_if_it_waits_for_it(desired: Desired, state: State, fresh: bool) -> None:
    actions = {health: plan(desired, state, fresh=fresh, health=health, leftovers=True) for health in Health}
    assert Action.INITIALIZE not in (actions[Health.SILENT], actions[Health.READY])
    assert (actions[Health.AWAITING_INIT] == Action.INITIALIZE) == (actions[Health.READY] == Action.SETTLE_RUNNING)
