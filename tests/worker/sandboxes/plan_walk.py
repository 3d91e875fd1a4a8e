"""One sandbox and `plan` alone: wishes, steps, operators' hands and workers' deaths, as the dice fall."""

from collections.abc import Callable
from random import Random

from shared.states import Desired
from worker.engine.protocol import ContainerState as State
from worker.sandboxes.planner import SETTLING, Action, Health

MAX_STEPS = 12
WAITING = (Action.AWAIT_HEALTH, Action.AWAIT_REMOVAL)
MET = {
    Desired.RUNNING: Action.SETTLE_RUNNING,
    Desired.PAUSED: Action.SETTLE_PAUSED,
    Desired.STOPPED: Action.SETTLE_PAUSED,
    Desired.DELETED: Action.SETTLE_DELETED,
}
TRUE = {
    Action.SETTLE_RUNNING: {State.RUNNING},
    Action.SETTLE_PAUSED: {State.FROZEN, State.EXITED, State.CREATED},
    Action.SETTLE_DELETED: {State.ABSENT},
    Action.FAIL: {State.ABSENT, State.EXITED, State.DEAD},
}
# What an operator, the kernel or the engine can make of a container.
OUTSIDE = {
    State.CREATED: [State.RUNNING, State.ABSENT],
    State.RUNNING: [State.FROZEN, State.EXITED, State.REMOVING, State.ABSENT],
    State.FROZEN: [State.RUNNING, State.EXITED, State.ABSENT],
    State.EXITED: [State.RUNNING, State.DEAD, State.ABSENT],
    State.DEAD: [State.ABSENT],
    State.REMOVING: [State.ABSENT, State.DEAD],
    State.ABSENT: [State.ABSENT],
}


class Walk:
    """Goes from turn to turn; a plan that is wrong is an AssertionError that says in what."""

    def __init__(self, plan: Callable[..., Action], dice: Random) -> None:
        self.steps = 0
        self._plan, self._dice = plan, dice
        self._begin()

    def go(self, turns: int) -> None:
        """Take so many turns, on one sandbox after another."""
        for _ in range(turns):
            if self._desired == Desired.DELETED and self._answered == self._generation:
                self._begin()
            happening = self._dice.choice((self._wish, self._operate, self._pass, self._pass))
            happening()
            self._turn(disturbed=self._dice.random() < 0.4)

    def _begin(self) -> None:
        self._desired, self._generation, self._answered = Desired.RUNNING, 1, 0
        self._state, self._volume = State.ABSENT, False
        # Whether somebody else has had a hand in it since the last wish.
        self._touched = False

    def _turn(self, *, disturbed: bool) -> None:
        """A worker's turn: the loop of `worker.sandboxes.reconciler` without its store."""
        fresh = self._answered != self._generation
        taken = 0
        while taken <= MAX_STEPS:
            if disturbed and self._dice.random() < 0.2:
                before = self._generation
                if self._dice.choice((self._wish, self._operate, self._pass))() is False:
                    return  # dead
                fresh = fresh or self._generation != before
            health = self._listen()
            gone = self._state == State.ABSENT
            leftovers = gone and self._volume
            step = self._plan(self._desired, self._state, fresh=fresh, health=health, leftovers=leftovers)
            self._judge(step, fresh=fresh, health=health)
            if step in SETTLING:
                self._answered = self._generation
                return
            self._take(step)
            taken += step not in WAITING or (step == Action.AWAIT_HEALTH and self._state != State.RUNNING)
            fresh = fresh and step not in (Action.START, Action.STOP, Action.FREEZE, Action.UNFREEZE)
        raise AssertionError(f"it goes round in circles: {self._desired}, {self._state}")

    def _judge(self, step: Action, *, fresh: bool, health: Health) -> None:
        self.steps += 1
        seen = f"{step} for {self._desired} ({'new' if fresh else 'answered'}) of {self._state}, volume: {self._volume}"
        if step in TRUE:
            assert self._state in TRUE[step], f"untrue: {seen}"
        if step == Action.SETTLE_RUNNING:
            assert health == Health.READY, f"not heard of: {seen}"
        if self._desired == Desired.DELETED:
            assert step in (Action.REMOVE, Action.AWAIT_REMOVAL, Action.SETTLE_DELETED), (
                f"in the way of a delete: {seen}"
            )
            assert step != Action.SETTLE_DELETED or not self._volume, f"left behind: {seen}"
            return
        assert step not in (Action.REMOVE, Action.SETTLE_DELETED), f"files lost: {seen}"
        if step in SETTLING and (fresh or (self._answered != self._generation and not self._touched)):
            assert step == MET[self._desired], f"not as wished: {seen}"
            keeps_memory = self._desired == Desired.STOPPED and self._state == State.FROZEN
            assert not keeps_memory, f"not stopped: {seen}"
        if not fresh and step not in SETTLING and step not in WAITING:
            told = step == Action.INITIALIZE and health == Health.DORMANT
            assert told or (step, self._state) == (Action.START, State.CREATED), f"fought: {seen}"

    def _take(self, step: Action) -> None:
        match step:
            case Action.CREATE:
                self._state, self._volume = State.CREATED, True
            case Action.START | Action.UNFREEZE:
                self._state = State.RUNNING
            case Action.FREEZE:
                self._state = State.FROZEN
            case Action.STOP:
                self._state = State.EXITED
            case Action.DISCARD | Action.AWAIT_REMOVAL:
                self._state = State.ABSENT
            case Action.REMOVE:
                self._state, self._volume = State.ABSENT, False

    def _listen(self) -> Health:
        if self._state != State.RUNNING:
            return Health.SILENT
        return self._dice.choices(list(Health), [3, 1, 6])[0]

    # --- what happens meanwhile ---------------------------------------------------------------------------------------

    def _wish(self) -> None:
        if self._desired != Desired.DELETED:
            self._desired = self._dice.choices(list(Desired), [4, 4, 2, 1])[0]
            self._generation += 1
            self._touched = False

    def _operate(self) -> None:
        self._state = self._dice.choice(OUTSIDE[self._state])
        self._touched = True

    def _pass(self) -> bool:
        """Nothing happens; to a worker in its turn, its death."""
        return False
