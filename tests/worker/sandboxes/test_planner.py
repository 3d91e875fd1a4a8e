"""`plan` with all combinations of its arguments, for containers that are not outdated.

A test goes through all of its combinations: as separate tests, a thousand of them took four seconds.
"""

from itertools import product
from typing import Any

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
# The last action of a plan for a new desired state.
REACHED = {
    Desired.RUNNING: Action.WRITE_RUNNING,
    Desired.PAUSED: Action.WRITE_PAUSED,
    Desired.STOPPED: Action.WRITE_PAUSED,
    Desired.DELETED: Action.WRITE_DELETED,
}


def test_plan_has_an_action_for_every_state() -> None:
    for case in PRODUCT:
        desired, state, unapplied, health, has_volume = case
        assert plan(desired, state, unapplied=unapplied, health=health, has_volume=has_volume) in Action, case


def test_every_plan_ends() -> None:
    """If every action succeeds, every plan ends, and a new desired state is reached."""
    for desired, state, unapplied in product(Desired, State, BOOLEANS):
        action, last = carry_out(desired, state, unapplied=unapplied)
        case = (desired, state, unapplied, action, last)
        assert action in FINAL_ACTIONS, case
        if unapplied:
            assert action == REACHED[desired], case
            assert desired != Desired.STOPPED or last in (State.CREATED, State.EXITED), case


def carry_out(desired: Desired, state: State, *, unapplied: bool) -> tuple[Action, State]:
    """Execute the plans; return the last action, and the container's last state."""
    has_volume = state != State.ABSENT
    for _ in range(8):
        health = Health.READY if state == State.RUNNING else Health.SILENT
        action = plan(desired, state, unapplied=unapplied, health=health, has_volume=has_volume)
        if action in FINAL_ACTIONS:
            break
        state = EFFECTS[action]
        has_volume = has_volume and action != Action.REMOVE
        unapplied = unapplied and action not in (Action.START, Action.STOP, Action.PAUSE, Action.UNPAUSE)
    return action, state


def test_plan_ends_only_with_the_observed_state() -> None:
    for case in PRODUCT:
        desired, state, unapplied, health, has_volume = case
        action = plan(desired, state, unapplied=unapplied, health=health, has_volume=has_volume)
        if action == Action.WRITE_RUNNING:
            assert state == State.RUNNING, case
            assert health == Health.READY, case
        if action == Action.WRITE_PAUSED:
            assert state in (State.PAUSED, State.CREATED, State.EXITED), case
        if action == Action.WRITE_DELETED:
            assert (state, has_volume) == (State.ABSENT, False), case
            assert desired == Desired.DELETED, case


def test_drift_is_reported_and_not_corrected() -> None:
    corrections = (
        Action.CREATE,
        Action.STOP,
        Action.PAUSE,
        Action.UNPAUSE,
        Action.REMOVE_CONTAINER,
        Action.REMOVE,
    )
    for case in product(Desired, State, Health, BOOLEANS):
        desired, state, health, has_volume = case
        action = plan(desired, state, unapplied=False, health=health, has_volume=has_volume)
        if desired == Desired.DELETED:
            assert action in (Action.REMOVE, Action.AWAIT_REMOVAL, Action.WRITE_DELETED), case
        else:
            # START continues after a worker that died between create and start.
            assert action not in corrections, case
            assert action != Action.START or state == State.CREATED, case


def test_only_a_delete_removes_files() -> None:
    for case in product(set(Desired) - {Desired.DELETED}, State, BOOLEANS, Health):
        desired, state, unapplied, health = case
        assert plan(desired, state, unapplied=unapplied, health=health, has_volume=True) != Action.REMOVE, case


def test_delete_ends_when_container_and_volume_are_gone() -> None:
    for case in product(BOOLEANS, Health, BOOLEANS):
        unapplied, health, has_volume = case
        observed: dict[str, Any] = {"unapplied": unapplied, "health": health, "has_volume": has_volume}
        for state in set(State) - {State.ABSENT, State.REMOVING}:
            assert plan(Desired.DELETED, state, **observed) == Action.REMOVE, (case, state)
        absent = plan(Desired.DELETED, State.ABSENT, **observed)
        assert absent == (Action.REMOVE if has_volume else Action.WRITE_DELETED), case


def test_server_is_initialized_only_if_it_awaits_its_init() -> None:
    for case in product(Desired, State, BOOLEANS):
        desired, state, unapplied = case
        actions = {one: plan(desired, state, unapplied=unapplied, health=one, has_volume=True) for one in Health}
        assert Action.INITIALIZE not in (actions[Health.SILENT], actions[Health.READY]), case
        is_initialized = actions[Health.AWAITING_INIT] == Action.INITIALIZE
        assert is_initialized == (actions[Health.READY] == Action.WRITE_RUNNING), case


def test_sandbox_that_was_never_ready_is_paused_without_a_container() -> None:
    for case in product(Desired, BOOLEANS, BOOLEANS):
        desired, unapplied, has_volume = case
        observed: dict[str, Any] = {"unapplied": unapplied, "health": Health.SILENT, "has_volume": has_volume}
        action = plan(desired, State.ABSENT, **observed, is_new=True)
        usual = plan(desired, State.ABSENT, **observed)
        assert action == (Action.WRITE_PAUSED if desired in PAUSING else usual), case
