"""`plan` over its whole product."""

from itertools import product

import pytest

from shared.states import Desired
from worker.containers import ContainerState as State
from worker.plan import SETTLING, Step, plan

BOOLEANS = (True, False)
PRODUCT = list(product(Desired, State, BOOLEANS, BOOLEANS, BOOLEANS))

# What each step makes of a container: enough of an engine to walk a plan to its end.
EFFECTS = {
    Step.CREATE: State.CREATED,
    Step.START: State.RUNNING,
    Step.FREEZE: State.FROZEN,
    Step.UNFREEZE: State.RUNNING,
    Step.DISCARD: State.ABSENT,
    Step.REMOVE: State.ABSENT,
    Step.AWAIT_REMOVAL: State.ABSENT,
}


@pytest.mark.parametrize(("desired", "state", "fresh", "healthy", "leftovers"), PRODUCT)
def test_a_plan_is_made_for_every_state(
    desired: Desired, state: State, fresh: bool, healthy: bool, leftovers: bool
) -> None:
    assert plan(desired, state, fresh=fresh, healthy=healthy, leftovers=leftovers) in Step


@pytest.mark.parametrize(("desired", "state", "fresh"), list(product(Desired, State, BOOLEANS)))
def test_every_plan_ends(desired: Desired, state: State, fresh: bool) -> None:
    """Walked with steps that work, every wish settles, and a new wish settles as wished."""
    was_fresh, leftovers = fresh, state != State.ABSENT
    for _ in range(8):
        step = plan(desired, state, fresh=fresh, healthy=state == State.RUNNING, leftovers=leftovers)
        if step in SETTLING:
            break
        state = EFFECTS[step]
        leftovers = leftovers and step != Step.REMOVE
        fresh = fresh and step not in (Step.START, Step.FREEZE, Step.UNFREEZE)
    wished = {
        Desired.RUNNING: Step.SETTLE_RUNNING,
        Desired.PAUSED: Step.SETTLE_PAUSED,
        Desired.DELETED: Step.SETTLE_DELETED,
    }
    assert step in SETTLING
    if was_fresh:
        assert step == wished[desired]


@pytest.mark.parametrize(("desired", "state", "fresh", "healthy", "leftovers"), PRODUCT)
def test_nothing_is_told_that_is_not_so(
    desired: Desired, state: State, fresh: bool, healthy: bool, leftovers: bool
) -> None:
    step = plan(desired, state, fresh=fresh, healthy=healthy, leftovers=leftovers)
    if step == Step.SETTLE_RUNNING:
        assert state == State.RUNNING
        assert healthy
    if step == Step.SETTLE_PAUSED:
        assert state in (State.FROZEN, State.CREATED, State.EXITED)
    if step == Step.SETTLE_DELETED:
        assert (state, leftovers) == (State.ABSENT, False)
        assert desired == Desired.DELETED


@pytest.mark.parametrize(
    ("desired", "state", "healthy", "leftovers"), list(product(Desired, State, BOOLEANS, BOOLEANS))
)
def test_a_change_behind_our_back_is_reported_and_not_fought(
    desired: Desired, state: State, healthy: bool, leftovers: bool
) -> None:
    step = plan(desired, state, fresh=False, healthy=healthy, leftovers=leftovers)
    if desired == Desired.DELETED:
        assert step in (Step.REMOVE, Step.AWAIT_REMOVAL, Step.SETTLE_DELETED)
    else:
        # START finishes what a worker began that died between create and start.
        assert step not in (Step.CREATE, Step.FREEZE, Step.UNFREEZE, Step.DISCARD, Step.REMOVE)
        assert step != Step.START or state == State.CREATED


@pytest.mark.parametrize(("state", "fresh", "healthy"), list(product(State, BOOLEANS, BOOLEANS)))
def test_nothing_but_a_delete_removes_files(state: State, fresh: bool, healthy: bool) -> None:
    for desired in (Desired.RUNNING, Desired.PAUSED):
        assert plan(desired, state, fresh=fresh, healthy=healthy, leftovers=True) != Step.REMOVE


@pytest.mark.parametrize(("fresh", "healthy", "leftovers"), list(product(BOOLEANS, BOOLEANS, BOOLEANS)))
def test_whatever_is_left_is_removed_before_a_delete_settles(fresh: bool, healthy: bool, leftovers: bool) -> None:
    for state in set(State) - {State.ABSENT, State.REMOVING}:
        assert plan(Desired.DELETED, state, fresh=fresh, healthy=healthy, leftovers=leftovers) == Step.REMOVE
    absent = plan(Desired.DELETED, State.ABSENT, fresh=fresh, healthy=healthy, leftovers=leftovers)
    assert absent == (Step.REMOVE if leftovers else Step.SETTLE_DELETED)
