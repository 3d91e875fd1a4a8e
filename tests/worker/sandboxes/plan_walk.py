"""A random walk over one sandbox and `plan` alone: desired states, actions, drift, deaths of workers."""

from collections.abc import Callable
from random import Random

from shared.states import Desired
from worker.engine.protocol import ContainerState as State
from worker.sandboxes.planner import FINAL_ACTIONS, Action, Health

MAX_ACTIONS = 12
WAITING = (Action.AWAIT_HEALTH, Action.AWAIT_REMOVAL)
REACHED = {
    Desired.RUNNING: Action.WRITE_RUNNING,
    Desired.PAUSED: Action.WRITE_PAUSED,
    Desired.STOPPED: Action.WRITE_PAUSED,
    Desired.DELETED: Action.WRITE_DELETED,
}
TRUE = {
    Action.WRITE_RUNNING: {State.RUNNING},
    Action.WRITE_PAUSED: {State.PAUSED, State.EXITED, State.CREATED},
    Action.WRITE_DELETED: {State.ABSENT},
    Action.FAIL: {State.ABSENT, State.EXITED, State.DEAD},
}
# Drift: the states to which an operator, the kernel or the engine can move a container.
OUTSIDE = {
    State.CREATED: [State.RUNNING, State.ABSENT],
    State.RUNNING: [State.PAUSED, State.EXITED, State.REMOVING, State.ABSENT],
    State.PAUSED: [State.RUNNING, State.EXITED, State.ABSENT],
    State.EXITED: [State.RUNNING, State.DEAD, State.ABSENT],
    State.DEAD: [State.ABSENT],
    State.REMOVING: [State.ABSENT, State.DEAD],
    State.ABSENT: [State.ABSENT],
}


class Walk:
    """Runs the reconcile loop repeatedly; a wrong plan raises an AssertionError that names the mistake."""

    def __init__(self, plan: Callable[..., Action], dice: Random) -> None:
        self.actions = 0
        self._plan, self._dice = plan, dice
        self._begin()

    def go(self, runs: int) -> None:
        """Run the loop `runs` times, on one sandbox after another."""
        for _ in range(runs):
            if self._desired == Desired.DELETED and self._observed == self._generation:
                self._begin()
            event = self._dice.choice((self._set_desired, self._drift, self._pass, self._pass))
            event()
            self._run(disturbed=self._dice.random() < 0.4)

    def _begin(self) -> None:
        self._desired, self._generation, self._observed = Desired.RUNNING, 1, 0
        self._state, self._volume = State.ABSENT, False
        # Whether drift has happened since the newest desired state.
        self._drifted = False

    def _run(self, *, disturbed: bool) -> None:
        """A worker's run: the loop of `worker.sandboxes.reconciler` without its store."""
        unapplied = self._observed != self._generation
        count = 0
        while count <= MAX_ACTIONS:
            if disturbed and self._dice.random() < 0.2:
                before = self._generation
                if self._dice.choice((self._set_desired, self._drift, self._pass))() is False:
                    return  # dead
                unapplied = unapplied or self._generation != before
            health = self._probe()
            gone = self._state == State.ABSENT
            has_volume = gone and self._volume
            action = self._plan(self._desired, self._state, unapplied=unapplied, health=health, has_volume=has_volume)
            self._check(action, unapplied=unapplied, health=health)
            if action in FINAL_ACTIONS:
                self._observed = self._generation
                return
            self._execute(action)
            count += action not in WAITING or (action == Action.AWAIT_HEALTH and self._state != State.RUNNING)
            unapplied = unapplied and action not in (Action.START, Action.STOP, Action.PAUSE, Action.UNPAUSE)
        raise AssertionError(f"no end: {self._desired}, {self._state}")

    def _check(self, action: Action, *, unapplied: bool, health: Health) -> None:
        self.actions += 1
        case = f"{action} for {self._desired} ({unapplied=}) of {self._state}, volume: {self._volume}"
        if action in TRUE:
            assert self._state in TRUE[action], f"untrue: {case}"
        if action == Action.WRITE_RUNNING:
            assert health == Health.READY, f"not healthy: {case}"
        if self._desired == Desired.DELETED:
            assert action in (Action.REMOVE, Action.AWAIT_REMOVAL, Action.WRITE_DELETED), f"no delete: {case}"
            assert action != Action.WRITE_DELETED or not self._volume, f"left behind: {case}"
            return
        assert action not in (Action.REMOVE, Action.WRITE_DELETED), f"files lost: {case}"
        if action in FINAL_ACTIONS and (unapplied or (self._observed != self._generation and not self._drifted)):
            assert action == REACHED[self._desired], f"not the desired state: {case}"
            keeps_memory = self._desired == Desired.STOPPED and self._state == State.PAUSED
            assert not keeps_memory, f"not stopped: {case}"
        if not unapplied and action not in FINAL_ACTIONS and action not in WAITING:
            initialized = action == Action.INITIALIZE and health == Health.AWAITING_INIT
            assert initialized or (action, self._state) == (Action.START, State.CREATED), f"drift corrected: {case}"

    def _execute(self, action: Action) -> None:
        match action:
            case Action.CREATE:
                self._state, self._volume = State.CREATED, True
            case Action.START | Action.UNPAUSE:
                self._state = State.RUNNING
            case Action.PAUSE:
                self._state = State.PAUSED
            case Action.STOP:
                self._state = State.EXITED
            case Action.REMOVE_CONTAINER | Action.AWAIT_REMOVAL:
                self._state = State.ABSENT
            case Action.REMOVE:
                self._state, self._volume = State.ABSENT, False

    def _probe(self) -> Health:
        if self._state != State.RUNNING:
            return Health.SILENT
        return self._dice.choices(list(Health), [3, 1, 6])[0]

    # --- events during a run ----------------------------------------------------------------------------------------

    def _set_desired(self) -> None:
        if self._desired != Desired.DELETED:
            self._desired = self._dice.choices(list(Desired), [4, 4, 2, 1])[0]
            self._generation += 1
            self._drifted = False

    def _drift(self) -> None:
        self._state = self._dice.choice(OUTSIDE[self._state])
        self._drifted = True

    def _pass(self) -> bool:
        """No event; during a run, the death of its worker."""
        return False
