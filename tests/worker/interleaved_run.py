"""One sandbox, and the workers and clients that act on it concurrently in the order of a seed."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from sqlmodel import Session, select

from shared.clock import now
from shared.db.database import Database
from shared.errors import NotFound
from shared.models import Sandbox, SandboxTransition, StartTask
from shared.sandboxes import desired_state
from shared.settings import Settings
from shared.sql.statements import Rows
from shared.states import Desired, Stage
from tests.doubles import ManualExecutor
from tests.drills.checker import Evidence
from tests.drills.requests import Entry, Outcome, Verb
from tests.factories import NODE_ID, SECRET_KEY, ApiUser, make_node, make_spec, make_start_task, make_user
from tests.fakes.engine import IMAGE, FakeEngine
from tests.worker import scenarios
from tests.worker.contexts import make_context
from tests.worker.scheduler import Fate, Scheduler
from worker.context import WorkerContext
from worker.lease_renewer import LeaseRenewer
from worker.loops.resync import resync
from worker.sandboxes.reconciler import reconcile, refresh_status
from worker.settings import WorkerSettings

ENGINE_VERBS = (
    *("observe", "create", "put_file", "start", "pause", "unpause", "stop", "remove_container", "remove"),
    *("remove_volume", "list_containers", "list_volumes", "list_unlabelled_volumes"),
)
VERBS = {
    Desired.RUNNING: Verb.RESUME,
    Desired.PAUSED: Verb.PAUSE,
    Desired.STOPPED: Verb.STOP,
    Desired.DELETED: Verb.DELETE,
}


class ScheduledDatabase(Database):
    """Database with a switch point before and after each transaction, and none while a transaction holds locks."""

    def __init__(self, database: Database, scheduler: Scheduler) -> None:
        self.engine = database.engine
        self._database, self._scheduler = database, scheduler

    @contextmanager
    def transaction(self, *, may_place: bool = False) -> Iterator[Session]:
        self._scheduler.point("begin")
        with self._database.transaction(may_place=may_place) as session:
            yield session
        self._scheduler.point("committed")

    def execute_and_commit(self, statement: Any, values: Mapping[str, Any]) -> Rows:
        self._scheduler.point("begin")
        rows = self._database.execute_and_commit(statement, values)
        self._scheduler.point("committed")
        return rows

    def fetch(self, statement: Any, values: Mapping[str, Any], *, custom_plan: bool = False) -> Rows:
        self._scheduler.point("read")
        return self._database.fetch(statement, values, custom_plan=custom_plan)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        self._scheduler.point("read")
        with self._database.reading() as session:
            yield session


@dataclass
class InterleavedRun:
    """One sandbox, and the actors that work on it."""

    scheduler: Scheduler
    context: WorkerContext
    engine: FakeEngine
    user: ApiUser
    sandbox_id: str
    task_id: str | None = None
    # Desired states by generation.
    desired: dict[int, Desired] = field(default_factory=lambda: {1: Desired.RUNNING})

    def run(self) -> None:
        """Run all actors until they end."""
        dice = self.scheduler.dice
        workers = ["worker-1", "worker-2"]
        acts: dict[str, Callable[[], None]] = {name: self._worker(name) for name in workers}
        acts |= {f"client-{number}": self._client() for number in range(dice.choice((1, 1, 2)))}
        if dice.random() < 0.3:
            acts["clock"] = self._expire
        if dice.random() < 0.3:
            acts["resync"] = self._resync
        fates = {}
        if dice.random() < 0.7:  # a crash, or a stall that outlasts the lease
            fates["worker-1"] = Fate(dice.randint(1, 40), dice.choice((None, self._expire)))
        self.scheduler.run(acts, fates)

    def complete(self) -> None:
        """Expire all leases, resync, and run the due work with one worker."""
        self._expire()
        for _ in range(2):
            self._resync()
            reconcile(self.context, self.sandbox_id)

    def evidence(self) -> Evidence:
        """Read the final state of store and engine."""
        last = self.desired[max(self.desired)]
        history = [
            Entry(1, Outcome.OK, Verb.START, self.sandbox_id),
            Entry(2, Outcome.OK, VERBS[last], self.sandbox_id),
        ]
        with self.context.database.reading() as session:
            return Evidence(
                history=history,
                sandboxes=session.exec(select(Sandbox)).all(),
                transitions=session.exec(select(SandboxTransition)).all(),
                containers=self.engine.list_containers(scenarios.INSTALLATION),
                volumes=self.engine.list_volumes(scenarios.INSTALLATION),
            )

    def is_enqueued(self) -> bool:
        """Whether the waiting start task, if any, was enqueued when its sandbox reached the desired state."""
        return self.task_id is None or scenarios.row(self.context, StartTask, self.task_id).due_at is not None

    def _worker(self, name: str) -> Callable[[], None]:
        own = replace(
            self.context,
            renewer=LeaseRenewer(self.context.database, name, 15),
            status_checks=ManualExecutor(),
            waiting_checks=set(),
        )
        jobs: list[Callable[[WorkerContext, str], Any]] = self.scheduler.dice.choices(
            [reconcile, refresh_status], [4, 1], k=4
        )

        def work() -> None:
            for job in jobs:
                job(own, self.sandbox_id)

        return work

    def _client(self) -> Callable[[], None]:
        dice = self.scheduler.dice
        requested = dice.choices(list(VERBS), [4, 4, 2, 1], k=dice.randint(1, 5))

        def send() -> None:
            for desired in requested:
                try:
                    self._set_desired(desired)
                except NotFound:
                    assert Desired.DELETED in self.desired.values()

        return send

    def _set_desired(self, desired: Desired) -> None:
        with self.context.database.transaction() as session:
            row = session.get_one(Sandbox, self.sandbox_id)
            desired_state.set_desired(session, row, desired, due_at=now())
            self.desired[row.generation] = desired

    def _expire(self) -> None:
        with self.context.database.transaction() as session:
            row = session.get_one(Sandbox, self.sandbox_id)
            row.lease_until = row.lease_until and now()

    def _resync(self) -> None:
        checks = ManualExecutor()
        resync(replace(self.context, status_checks=checks, waiting_checks=set()))
        while checks.waiting:
            checks.run()


def make_interleaved_run(seed: int, database: Database, directory: Path) -> InterleavedRun:
    """Create a sandbox that was just requested or that runs, with the actors of this seed."""
    scheduler, engine = Scheduler(seed), FakeEngine()
    make_spec(database, IMAGE)
    make_node(database)
    scheduled = ScheduledDatabase(database, scheduler)
    context = make_context(
        scheduled,
        engine,
        engine.agent_servers(),
        Settings(var_dir=directory, secret_keys=SecretStr(SECRET_KEY)),
        WorkerSettings(node=NODE_ID, health_timeout=1),
        owner="worker-0",
    )
    user = make_user(database, f"user-{seed}")
    scenario = InterleavedRun(scheduler, context, engine, user, scenarios.start(context, user))
    if scheduler.dice.random() < 0.6:
        reconcile(context, scenario.sandbox_id)
    if scheduler.dice.random() < 0.3:
        row = scenarios.row(context, Sandbox, scenario.sandbox_id)
        task = make_start_task(database, user, row, stage=Stage.WAITING_FOR_SANDBOX, due_at=None)
        scenario.task_id = task.id
        scenarios.set_desired(context, scenario.sandbox_id, Desired.RUNNING)
        scenario.desired[2] = Desired.RUNNING
    engine.before = {verb: partial(_pass_point, scheduler, verb) for verb in ENGINE_VERBS}
    return scenario


def _pass_point(scheduler: Scheduler, verb: str, _name: str) -> None:
    scheduler.point(verb)
