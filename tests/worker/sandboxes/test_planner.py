"""`plan` over its whole product."""

from itertools import product

import pytest

from shared.states import Desired
from worker.engine.protocol import ContainerState as State
from worker.sandboxes.planner import SETTLING, Action, Health, plan

BOOLEANS = (True, False)
PRODUCT = list(product(Desired, State, BOOLEANS, Health, BOOLEANS))

# What each step makes of a container: enough of an engine to walk a plan to its end.
EFFECTS = {
    Action.CREATE: State.CREATED,
    Action.START: State.RUNNING,
    Action.FREEZE: State.FROZEN,
    Action.STOP: State.EXITED,
    Action.UNFREEZE: State.RUNNING,
    Action.DISCARD: State.ABSENT,
    Action.REMOVE: State.ABSENT,
    Action.AWAIT_REMOVAL: State.ABSENT,
}


@pytest.mark.parametrize(("desired", "state", "fresh", "health", "leftovers"), PRODUCT)
def test_plan_has_a_step_for_every_state(
    desired: Desired, state: State, fresh: bool, health: Health, leftovers: bool
) -> None:
    assert plan(desired, state, fresh=fresh, health=health, leftovers=leftovers) in Action


@pytest.mark.parametrize(("desired", "state", "fresh"), list(product(Desired, State, BOOLEANS)))
def test_every_plan_ends(desired: Desired, state: State, fresh: bool) -> None:
    """Walked with steps that work, every wish settles, and a new wish settles as wished."""
    was_fresh, leftovers = fresh, state != State.ABSENT
    for _ in range(8):
        step = plan(
            desired,
            state,
            fresh=fresh,
            health=Health.READY if state == State.RUNNING else Health.SILENT,
            leftovers=leftovers,
        )
        if step in SETTLING:
            break
        state = EFFECTS[step]
        leftovers = leftovers and step != Action.REMOVE
        fresh = fresh and step not in (Action.START, Action.STOP, Action.FREEZE, Action.UNFREEZE)
    wished = {
        Desired.RUNNING: Action.SETTLE_RUNNING,
        Desired.PAUSED: Action.SETTLE_PAUSED,
        Desired.STOPPED: Action.SETTLE_PAUSED,
        Desired.DELETED: Action.SETTLE_DELETED,
    }
    assert step in SETTLING
    if was_fresh:
        assert step == wished[desired]
        assert desired != Desired.STOPPED or state in (State.CREATED, State.EXITED)


@pytest.mark.parametrize(("desired", "state", "fresh", "health", "leftovers"), PRODUCT)
def test_plan_settles_only_on_what_is_so(
    desired: Desired, state: State, fresh: bool, health: Health, leftovers: bool
) -> None:
    step = plan(desired, state, fresh=fresh, health=health, leftovers=leftovers)
    if step == Action.SETTLE_RUNNING:
        assert state == State.RUNNING
        assert health == Health.READY
    if step == Action.SETTLE_PAUSED:
        assert state in (State.FROZEN, State.CREATED, State.EXITED)
    if step == Action.SETTLE_DELETED:
        assert (state, leftovers) == (State.ABSENT, False)
        assert desired == Desired.DELETED


@pytest.mark.parametrize(("desired", "state", "health", "leftovers"), list(product(Desired, State, Health, BOOLEANS)))
def test_drift_is_reported_and_not_fought(desired: Desired, state: State, health: Health, leftovers: bool) -> None:
    step = plan(desired, state, fresh=False, health=health, leftovers=leftovers)
    if desired == Desired.DELETED:
        assert step in (Action.REMOVE, Action.AWAIT_REMOVAL, Action.SETTLE_DELETED)
    else:
        # START finishes what a worker began that died between create and start.
        assert step not in (Action.CREATE, Action.STOP, Action.FREEZE, Action.UNFREEZE, Action.DISCARD, Action.REMOVE)
        assert step != Action.START or state == State.CREATED


@pytest.mark.parametrize(("state", "fresh", "health"), list(product(State, BOOLEANS, Health)))
def test_files_are_removed_by_a_delete_only(state: State, fresh: bool, health: Health) -> None:
    for desired in set(Desired) - {Desired.DELETED}:
        assert plan(desired, state, fresh=fresh, health=health, leftovers=True) != Action.REMOVE


@pytest.mark.parametrize(("fresh", "health", "leftovers"), list(product(BOOLEANS, Health, BOOLEANS)))
def test_delete_settles_when_nothing_is_left(fresh: bool, health: Health, leftovers: bool) -> None:
    for state in set(State) - {State.ABSENT, State.REMOVING}:
        assert plan(Desired.DELETED, state, fresh=fresh, health=health, leftovers=leftovers) == Action.REMOVE
    absent = plan(Desired.DELETED, State.ABSENT, fresh=fresh, health=health, leftovers=leftovers)
    assert absent == (Action.REMOVE if leftovers else Action.SETTLE_DELETED)


@pytest.mark.parametrize(("desired", "state", "fresh"), list(product(Desired, State, BOOLEANS)))
def test_server_is_initialized_only_if_it_waits_for_it(desired: Desired, state: State, fresh: bool) -> None:
    steps = {health: plan(desired, state, fresh=fresh, health=health, leftovers=True) for health in Health}
    assert Action.INITIALIZE not in (steps[Health.SILENT], steps[Health.READY])
    assert (steps[Health.DORMANT] == Action.INITIALIZE) == (steps[Health.READY] == Action.SETTLE_RUNNING)
