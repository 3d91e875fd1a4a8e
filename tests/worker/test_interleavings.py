"""Starts, pauses, resumes and deletes that run into each other in every order the dice find: nothing is ever stuck.

Two workers, one or two clients and a comparison with the engine act on one sandbox, one at a time, and change places
before and after each transaction and before each call to the engine. Workers die, sleep for longer than their leases,
and leases run out in the middle of a turn. One seed is one order of events; a failure tells it, and the test of that
name and number repeats it. At night seeds begin at a random number, which pytest's header names and `--seed` takes.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlmodel import Session, delete, select

from shared.clock import now
from shared.db.database import Database
from shared.errors import NotFound
from shared.models import Node, Sandbox, SandboxTransition, StartTask
from shared.sandboxes import desired_state
from shared.settings import Settings
from shared.sql.prepared import Rows
from shared.states import Desired, Stage
from tests import effort
from tests.doubles import PatientExecutor, RecordingPublisher
from tests.drills.checker import Evidence, check
from tests.drills.requests import Entry, Outcome, Verb
from tests.factories import NODE_ID, SECRET_KEY, VAULT, Person, make_node, make_person, make_spec, make_start_task
from tests.fakes.engine import IMAGE, FakeEngine
from tests.services.stores import PostgresStores, SqliteStores
from tests.worker import scenes
from tests.worker.mutants import MUTANTS
from tests.worker.scheduler import Fate, Scheduler
from worker.context import WorkerContext
from worker.leasing.agent_lane import AgentLane
from worker.leasing.lease_renewer import LeaseRenewer
from worker.loops.resync import resync
from worker.sandboxes.reconciler import reconcile, refresh_status
from worker.settings import WorkerSettings

# Orders of events in a test, and tests.
LIVES = effort.choose(quick=50, change=50, thorough=1000)
# The mutants that some of these lives tell from the right worker. `test_plan_walk` tells all wrong plans; what is
# rare here is in `test_converge`.
SEEN_HERE = [
    "a new pause is not carried out",
    "no wish is new",
    "a created container is not started",
    "no fence where a fact is written",
    "the answer is for the wish before",
    "nobody is woken",
]
SHARDS, POSTGRES_SHARDS = range(effort.choose(quick=1, change=2, thorough=20)), range(1)
# The first of these lives by which a wrong worker is noticed is among the first thousand.
LIVES_OF_MUTANTS = range(1000)
INSTALLATION = "test-installation"
ENGINE_VERBS = (
    *("observe", "create", "put_file", "start", "freeze", "unfreeze", "stop", "discard", "remove"),
    *("remove_volume", "list_containers", "list_volumes", "list_unlabelled_volumes"),
)
VERBS = {
    Desired.RUNNING: Verb.RESUME,
    Desired.PAUSED: Verb.PAUSE,
    Desired.STOPPED: Verb.STOP,
    Desired.DELETED: Verb.DELETE,
}


class ScheduledDatabase(Database):
    """A database with a point before and after each transaction: never within one, where locks are held."""

    def __init__(self, database: Database, scheduler: Scheduler) -> None:
        self.engine = database.engine
        self._database, self._scheduler = database, scheduler

    @contextmanager
    def transaction(self, *, needs_place: bool = False) -> Iterator[Session]:
        self._scheduler.point("begin")
        with self._database.transaction(needs_place=needs_place) as session:
            yield session
        self._scheduler.point("committed")

    def execute_and_commit(self, statement: Any, values: Mapping[str, Any]) -> Rows:
        self._scheduler.point("begin")
        rows = self._database.execute_and_commit(statement, values)
        self._scheduler.point("committed")
        return rows

    def fetch(self, statement: Any, values: Mapping[str, Any], *, plan_anew: bool = False) -> Rows:
        self._scheduler.point("read")
        return self._database.fetch(statement, values, plan_anew=plan_anew)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        self._scheduler.point("read")
        with self._database.reading() as session:
            yield session


@dataclass
class Life:
    """One sandbox and everybody who has to do with it."""

    scheduler: Scheduler
    context: WorkerContext
    engine: FakeEngine
    user: Person
    sandbox_id: str
    task_id: str | None = None
    # What was wished, by the generation that the wish was given.
    wishes: dict[int, Desired] = field(default_factory=lambda: {1: Desired.RUNNING})

    def live(self) -> None:
        """Let everybody act, then nobody but one worker."""
        dice = self.scheduler.dice
        workers = ["worker-1", "worker-2"]
        acts: dict[str, Callable[[], None]] = {name: self._worker(name) for name in workers}
        acts |= {f"client-{number}": self._client() for number in range(dice.choice((1, 1, 2)))}
        if dice.random() < 0.3:
            acts["clock"] = self._expire
        if dice.random() < 0.3:
            acts["watch"] = self._compare
        fates = {}
        if dice.random() < 0.7:  # death, or a sleep longer than a lease
            fates["worker-1"] = Fate(dice.randint(1, 40), dice.choice((None, self._expire)))
        self.scheduler.run(acts, fates)

    def settle(self) -> None:
        """Time passes: leases run out, store and engine are compared, and what is due is done."""
        self._expire()
        for _ in range(2):
            self._compare()
            reconcile(self.context, self.sandbox_id)

    def evidence(self) -> Evidence:
        """What is found in the end."""
        last = self.wishes[max(self.wishes)]
        history = [
            Entry(1, Outcome.OK, Verb.START, self.sandbox_id),
            Entry(2, Outcome.OK, VERBS[last], self.sandbox_id),
        ]
        with self.context.database.reading() as session:
            return Evidence(
                history=history,
                sandboxes=session.exec(select(Sandbox)).all(),
                transitions=session.exec(select(SandboxTransition)).all(),
                containers=self.engine.list_containers(INSTALLATION),
                volumes=self.engine.list_volumes(INSTALLATION),
            )

    def is_woken(self) -> bool:
        """Whether the start task that waited, if any, was told that its sandbox has settled."""
        return self.task_id is None or scenes.row(self.context, StartTask, self.task_id).due_at is not None

    def _worker(self, name: str) -> Callable[[], None]:
        own = replace(self.context, renewer=LeaseRenewer(self.context.database, name, 15), looks=PatientExecutor())
        turns: list[Callable[[WorkerContext, str], Any]] = self.scheduler.dice.choices(
            [reconcile, refresh_status], [4, 1], k=4
        )

        def work() -> None:
            for turn in turns:
                turn(own, self.sandbox_id)

        return work

    def _client(self) -> Callable[[], None]:
        dice = self.scheduler.dice
        wanted = dice.choices(list(VERBS), [4, 4, 2, 1], k=dice.randint(1, 5))

        def ask() -> None:
            for desired in wanted:
                try:
                    self._wish(desired)
                except NotFound:
                    assert Desired.DELETED in self.wishes.values()

        return ask

    def _wish(self, desired: Desired) -> None:
        with self.context.database.transaction() as session:
            row = session.get_one(Sandbox, self.sandbox_id)
            desired_state.set_desired(session, row, desired, due_at=now())
            self.wishes[row.generation] = desired

    def _expire(self) -> None:
        with self.context.database.transaction() as session:
            row = session.get_one(Sandbox, self.sandbox_id)
            row.lease_until = row.lease_until and now()

    def _compare(self) -> None:
        looks = PatientExecutor()
        resync(replace(self.context, looks=looks))
        while looks.waiting:
            looks.run()


@pytest.fixture(autouse=True)
def _one_thread_an_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.sandboxes.actions.run_watched", lambda work, _watch, **_options: work())


def make_life(seed: int, database: Database, directory: Path) -> Life:
    """A sandbox that was just wished for, or that runs."""
    scheduler, engine = Scheduler(seed), FakeEngine()
    make_spec(database, IMAGE)
    make_node(database)
    scheduled = ScheduledDatabase(database, scheduler)
    context = WorkerContext(
        shared=Settings(var_dir=directory, secret_keys=SecretStr(SECRET_KEY)),
        settings=WorkerSettings(node=NODE_ID, health_timeout=1),
        database=scheduled,
        vault=VAULT,
        engine=engine,
        publisher=RecordingPublisher(),
        renewer=LeaseRenewer(scheduled, "worker-0", 15),
        http=engine.agent_servers(),
        looks=PatientExecutor(),
        probes=PatientExecutor(),
        installation=INSTALLATION,
        lane=AgentLane(32),
    )
    user = make_person(database, f"user-{seed}")
    life = Life(scheduler, context, engine, user, scenes.start(context, user))
    if scheduler.dice.random() < 0.6:
        reconcile(context, life.sandbox_id)
    if scheduler.dice.random() < 0.3:
        row = scenes.row(context, Sandbox, life.sandbox_id)
        task = make_start_task(database, user, row, stage=Stage.WAITING_FOR_SANDBOX, due_at=None)
        life.task_id = task.id
        scenes.wish(context, life.sandbox_id, Desired.RUNNING)
        life.wishes[2] = Desired.RUNNING
    engine.before = {verb: partial(_pass, scheduler, verb) for verb in ENGINE_VERBS}
    return life


def _pass(scheduler: Scheduler, verb: str, _name: str) -> None:
    scheduler.point(verb)


def violations(seed: int, database: Database, directory: Path) -> list[str]:
    """What an order of events leads to that must not be."""
    life = make_life(seed, database, directory)
    try:
        life.live()
        life.settle()
        found = check(life.evidence())
        woken = [] if life.is_woken() else ["the start task was not woken"]
        return [*found, *woken, *([f"seed {seed}:", *life.scheduler.trace] if found or woken else [])]
    finally:
        life.context.http.close()


def seeds(shard: int) -> range:
    """Those of one test."""
    first = effort.first_seed() + shard * LIVES
    return range(first, first + LIVES)


def assert_all_end_well(seeds: range, url: str, directory: Path) -> None:
    """Live these lives, one after the other in one store."""
    database = Database(url)
    try:
        for seed in seeds:
            assert violations(seed, database, directory) == []
            clear(database)
    finally:
        database.close()


def clear(database: Database) -> None:
    """Forget the last life."""
    with database.transaction() as session:
        for table in (StartTask, SandboxTransition, Sandbox, Node):  # a node without a heartbeat takes nothing
            session.execute(delete(table))


@pytest.mark.parametrize("shard", SHARDS)
def test_nothing_is_stuck(shard: int, sqlite_stores: SqliteStores, tmp_path: Path) -> None:
    with sqlite_stores.fresh(tmp_path) as url:
        assert_all_end_well(seeds(shard), url, tmp_path)


@pytest.mark.parametrize("shard", POSTGRES_SHARDS)
def test_nothing_is_stuck_on_postgresql(shard: int, postgres_stores: PostgresStores, tmp_path: Path) -> None:
    with postgres_stores.fresh(tmp_path) as url:
        assert_all_end_well(seeds(shard), url, tmp_path)


@pytest.mark.parametrize("name", SEEN_HERE)
def test_wrong_worker_is_noticed(
    name: str, sqlite_stores: SqliteStores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one of these lives at least: else they would show nothing."""
    MUTANTS[name](monkeypatch)
    with sqlite_stores.fresh(tmp_path) as url, pytest.raises(AssertionError):
        assert_all_end_well(LIVES_OF_MUTANTS, url, tmp_path)
