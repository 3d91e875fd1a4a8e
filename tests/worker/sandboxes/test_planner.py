"""`plan` with all combinations of its arguments, for containers that are not outdated."""

from itertools import product
from typing import Any

import pytest

from shared.states import PAUSING, Desired
from worker.engine.protocol import ContainerState as State
from worker.sandboxes.planner import FINAL_ACTIONS, Action, Health, plan

BOOLEANS = (True, False)
PRODUCT = list(product(Desired, State, BOOLEANS, Health, BOOLEANS))

# The container's state after each action: enough of an engine to execute a plan to its end.
EFFECTS = {
    Action.CREATE: State.CREATED,
    Action.START: State.RUNNING,
    Action.PAUSE: State.PAUSED,
    Action.STOP: State.EXITED,
    Action.UNPAUSE: State.RUNNING,
    Action.REMOVE_CONTAINER: State.ABSENT,
    Action.REMOVE: State.ABSENT,
    Action.AWAIT_REMOVAL: State.ABSENT,
}


@pytest.mark.parametrize(("desired", "state", "unapplied", "health", "has_volume"), PRODUCT)
def test_plan_has_an_action_for_every_state(
    desired: Desired, state: State, unapplied: bool, health: Health, has_volume: bool
) -> None:
    assert plan(desired, state, unapplied=unapplied, health=health, has_volume=has_volume) in Action


@pytest.mark.parametrize(("desired", "state", "unapplied"), list(product(Desired, State, BOOLEANS)))
def test_every_plan_ends(desired: Desired, state: State, unapplied: bool) -> None:
    """If every action succeeds, every plan ends, and a new desired state is reached."""
    was_fresh, has_volume = unapplied, state != State.ABSENT
    for _ in range(8):
        action = plan(
            desired,
            state,
            unapplied=unapplied,
            health=Health.READY if state == State.RUNNING else Health.SILENT,
            has_volume=has_volume,
        )
        if action in FINAL_ACTIONS:
            break
        state = EFFECTS[action]
        has_volume = has_volume and action != Action.REMOVE
        unapplied = unapplied and action not in (Action.START, Action.STOP, Action.PAUSE, Action.UNPAUSE)
    reached = {
        Desired.RUNNING: Action.WRITE_RUNNING,
        Desired.PAUSED: Action.WRITE_PAUSED,
        Desired.STOPPED: Action.WRITE_PAUSED,
        Desired.DELETED: Action.WRITE_DELETED,
    }
    assert action in FINAL_ACTIONS
    if was_fresh:
        assert action == reached[desired]
        assert desired != Desired.STOPPED or state in (State.CREATED, State.EXITED)


@pytest.mark.parametrize(("desired", "state", "unapplied", "health", "has_volume"), PRODUCT)
def test_plan_ends_only_with_the_observed_state(
    desired: Desired, state: State, unapplied: bool, health: Health, has_volume: bool
) -> None:
    action = plan(desired, state, unapplied=unapplied, health=health, has_volume=has_volume)
    if action == Action.WRITE_RUNNING:
        assert state == State.RUNNING
        assert health == Health.READY
    if action == Action.WRITE_PAUSED:
        assert state in (State.PAUSED, State.CREATED, State.EXITED)
    if action == Action.WRITE_DELETED:
        assert (state, has_volume) == (State.ABSENT, False)
        assert desired == Desired.DELETED


@pytest.mark.parametrize(("desired", "state", "health", "has_volume"), list(product(Desired, State, Health, BOOLEANS)))
def test_drift_is_reported_and_not_corrected(desired: Desired, state: State, health: Health, has_volume: bool) -> None:
    action = plan(desired, state, unapplied=False, health=health, has_volume=has_volume)
    if desired == Desired.DELETED:
        assert action in (Action.REMOVE, Action.AWAIT_REMOVAL, Action.WRITE_DELETED)
    else:
        # START continues after a worker that died between create and start.
        assert action not in (
            Action.CREATE,
            Action.STOP,
            Action.PAUSE,
            Action.UNPAUSE,
            Action.REMOVE_CONTAINER,
            Action.REMOVE,
        )
        assert action != Action.START or state == State.CREATED


@pytest.mark.parametrize(("state", "unapplied", "health"), list(product(State, BOOLEANS, Health)))
def test_only_a_delete_removes_files(state: State, unapplied: bool, health: Health) -> None:
    for desired in set(Desired) - {Desired.DELETED}:
        assert plan(desired, state, unapplied=unapplied, health=health, has_volume=True) != Action.REMOVE


@pytest.mark.parametrize(("unapplied", "health", "has_volume"), list(product(BOOLEANS, Health, BOOLEANS)))
def test_delete_ends_when_container_and_volume_are_gone(unapplied: bool, health: Health, has_volume: bool) -> None:
    for state in set(State) - {State.ABSENT, State.REMOVING}:
        assert plan(Desired.DELETED, state, unapplied=unapplied, health=health, has_volume=has_volume) == Action.REMOVE
    absent = plan(Desired.DELETED, State.ABSENT, unapplied=unapplied, health=health, has_volume=has_volume)
    assert absent == (Action.REMOVE if has_volume else Action.WRITE_DELETED)


@pytest.mark.parametrize(("desired", "state", "unapplied"), list(product(Desired, State, BOOLEANS)))
def test_server_is_initialized_only_if_it_awaits_its_init(desired: Desired, state: State, unapplied: bool) -> None:
    actions = {health: plan(desired, state, unapplied=unapplied, health=health, has_volume=True) for health in Health}
    assert Action.INITIALIZE not in (actions[Health.SILENT], actions[Health.READY])
    assert (actions[Health.AWAITING_INIT] == Action.INITIALIZE) == (actions[Health.READY] == Action.WRITE_RUNNING)


@pytest.mark.parametrize(("desired", "unapplied", "has_volume"), list(product(Desired, BOOLEANS, BOOLEANS)))
def test_sandbox_that_was_never_ready_is_paused_without_a_container(
    desired: Desired, unapplied: bool, has_volume: bool
) -> None:
    observed: dict[str, Any] = {"unapplied": unapplied, "health": Health.SILENT, "has_volume": has_volume}
    action = plan(desired, State.ABSENT, **observed, is_new=True)
    is_pause = desired in PAUSING
    assert action == (Action.WRITE_PAUSED if is_pause else plan(desired, State.ABSENT, **observed))
