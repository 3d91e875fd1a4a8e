"""Desired states in any order, and workers that die at any point: every desired state is reached in the end."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, rule, run_state_machine_as_test
from pydantic import SecretStr
from sqlmodel import select

from shared.clock import now
from shared.db.database import Database
from shared.db.migrations import migrate
from shared.errors import NotFound
from shared.models import Sandbox, SandboxTransition
from shared.settings import Settings
from shared.states import Desired
from tests.drills.checker import Evidence, check
from tests.drills.requests import DESIRED_STATES, Entry, Outcome, Verb
from tests.effort import bounds
from tests.factories import NODE_ID, SECRET_KEY, make_node, make_spec, make_user
from tests.fakes.engine import IMAGE, FakeEngine
from tests.worker import scenarios
from tests.worker.contexts import make_context
from worker.context import WorkerContext
from worker.sandboxes.reconciler import reconcile
from worker.settings import WorkerSettings

BOUNDS = bounds(
    max_examples=25,
    stateful_step_count=12,
    suppress_health_check=[HealthCheck.too_slow],  # the duration depends on the load of the machine
)
VERBS = ("observe", "create", "put_file", "start", "pause", "unpause", "stop", "remove_container", "remove")
# More calls than a run has; None: the worker lives.
MOMENTS = st.none() | st.integers(0, 30)


class Crash(BaseException):
    """A worker's death: no call is finished, and no error is handled."""


class ReconcilerMachine(RuleBasedStateMachine):
    """Sandboxes, desired states, and workers that reconcile them or die at a call to engine or store."""

    sandboxes = Bundle("sandboxes")

    def __init__(self, template: Path) -> None:
        super().__init__()
        self._directory = TemporaryDirectory()
        path = shutil.copy(template, self._directory.name)
        self._engine = FakeEngine()
        self._context = make_worker(Path(path), self._engine)
        self._user = make_user(self._context.database, "alice")
        self._history: list[Entry] = []

    @rule(target=sandboxes, boots=st.booleans())
    def start(self, *, boots: bool) -> str:
        sandbox_id = scenarios.start(self._context, self._user)
        if boots:
            reconcile(self._context, sandbox_id)
        self._notify(self._call(), Outcome.OK, Verb.START, sandbox_id)
        return sandbox_id

    @rule(sandbox_id=sandboxes, verb=st.sampled_from([Verb.PAUSE, Verb.STOP, Verb.RESUME, Verb.DELETE]))
    def set_desired(self, sandbox_id: str, verb: Verb) -> None:
        call = self._call()
        self._notify(call, Outcome.INVOKED, verb, sandbox_id)
        try:
            scenarios.set_desired(self._context, sandbox_id, DESIRED_STATES[verb])
            self._notify(call, Outcome.OK, verb, sandbox_id)
        except NotFound:
            self._notify(call, Outcome.FAILED, verb, sandbox_id)

    @rule(sandbox_id=sandboxes, moment=MOMENTS)
    def reconcile_or_die(self, sandbox_id: str, moment: int | None) -> None:
        context = crashing_context(self._context, self._engine, moment)
        try:
            reconcile(context, sandbox_id)
        except Crash:
            self._expire(sandbox_id)
        finally:
            self._engine.before.clear()

    @rule(sandbox_id=sandboxes, moment=MOMENTS, desired=st.sampled_from(Desired))
    def reconcile_while_it_changes(self, sandbox_id: str, moment: int, desired: Desired) -> None:
        verb = next(verb for verb, target in DESIRED_STATES.items() if target == desired and verb != Verb.START)
        act = first_call(lambda: self.set_desired(sandbox_id, verb))
        self._engine.before = dict.fromkeys(VERBS, counting(moment, act))
        reconcile(self._context, sandbox_id)
        self._engine.before.clear()

    def teardown(self) -> None:
        try:
            for sandbox_id in self._ids():
                reconcile(self._context, sandbox_id)
            assert check(self._evidence()) == []
        finally:
            self._context.http.close()
            self._context.database.close()
            self._directory.cleanup()

    def _expire(self, sandbox_id: str) -> None:
        if scenarios.row(self._context, Sandbox, sandbox_id).lease_until is not None:
            scenarios.change(self._context, Sandbox, sandbox_id, lease_until=now())

    def _call(self) -> int:
        return len(self._history)

    def _notify(self, call: int, outcome: Outcome, verb: Verb, sandbox_id: str) -> None:
        self._history.append(Entry(call, outcome, verb, sandbox_id))

    def _ids(self) -> list[str]:
        with self._context.database.reading() as session:
            return list(session.exec(select(Sandbox.id)).all())

    def _evidence(self) -> Evidence:
        with self._context.database.reading() as session:
            return Evidence(
                history=self._history,
                sandboxes=session.exec(select(Sandbox)).all(),
                transitions=session.exec(select(SandboxTransition)).all(),
                containers=self._engine.list_containers(scenarios.INSTALLATION),
                volumes=self._engine.list_volumes(scenarios.INSTALLATION),
            )


def test_desired_state_is_reached_after_any_sequence_of_events(tmp_path: Path) -> None:
    template = tmp_path / "template.db"
    migrate(f"sqlite:///{template}")
    run_state_machine_as_test(lambda: ReconcilerMachine(template), settings=BOUNDS)  # type: ignore[arg-type]


def make_worker(path: Path, engine: FakeEngine) -> WorkerContext:
    """A worker on a store of its own."""
    database = Database(f"sqlite:///{path}")
    make_spec(database, IMAGE)
    make_node(database)
    return make_context(
        database,
        engine,
        engine.agent_servers(),
        Settings(var_dir=path.parent, secret_keys=SecretStr(SECRET_KEY)),
        WorkerSettings(node=NODE_ID, lease_seconds=15, health_timeout=1),
    )


def crashing_context(context: WorkerContext, engine: FakeEngine, moment: int | None) -> WorkerContext:
    """The same worker; it dies at its call number `moment` to engine or store."""
    point = counting(moment, die)
    engine.before = dict.fromkeys(VERBS, point)
    database = scenarios.HookedDatabase(context.database, -1, die)
    database.point = lambda: point("")  # type: ignore[method-assign]
    return replace(context, database=database)


def die() -> None:
    raise Crash


def first_call(act: Callable[[], None]) -> Callable[[], None]:
    """A function that acts in its first call only."""
    acts = [act]
    return lambda: acts.pop()() if acts else None


def counting(moment: int | None, act: Callable[[], None]) -> Callable[[str], None]:
    """A function that acts in its call number `moment`."""
    calls: list[str] = []

    def call(name: str) -> None:
        calls.append(name)
        if len(calls) - 1 == moment:
            act()

    return call
