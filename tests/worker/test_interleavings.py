"""Concurrent starts, pauses, resumes and deletes in random orders of events: no sandbox is ever stuck.

Two workers, one or two clients and a resync act on one sandbox. One of them runs at a time; they switch before and
after each transaction and before each call to the engine. Workers crash or stall for more than their leases, and leases
expire during work. One seed is one order of events. A failure names its seed, and the test with that name and number
repeats it. Thorough runs begin at a random seed, which pytest's header names and `--seed` sets.
"""

from pathlib import Path

import pytest
from sqlmodel import delete

from shared.db.database import Database
from shared.models import Node, Sandbox, SandboxLog, SandboxTransition, StartTask
from tests import effort
from tests.drills.checker import check
from tests.services.stores import PostgresStores, SqliteStores
from tests.worker.interleaved_run import make_interleaved_run
from tests.worker.mutants import MUTANTS, Patch

# Orders of events per test.
RUNS = effort.choose(quick=50, change=50, thorough=1000)
# The orders are the same on both databases, because one actor runs at a time. For a change, PostgreSQL gets enough of
# them to execute all of their statements.
POSTGRES_RUNS = effort.choose(quick=15, change=15, thorough=1000)
# Mutants that some of these orders detect. `test_plan_walk` detects all wrong plans, and the reconciler's tests detect
# the others.
DETECTED_MUTANTS = [
    "a new pause is not executed",
    "no desired state is new",
    "a created container is not started",
    "no fencing token in status writes",
    "an older generation is observed",
    "no waiter is enqueued",
]
SHARDS, POSTGRES_SHARDS = range(effort.choose(quick=1, change=1, thorough=20)), range(1)
# Each of these mutants is detected by one of the first thousand orders of events.
LIVES_OF_MUTANTS = range(1000)


@pytest.fixture(autouse=True)
def _one_thread_per_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.sandboxes.actions.run_watched", lambda work, _watch, **_options: work())


def violations(seed: int, database: Database, directory: Path) -> list[str]:
    """Run an order of events, and return the invariants that it violates, and its trace."""
    scenario = make_interleaved_run(seed, database, directory)
    try:
        scenario.run()
        scenario.complete()
        found = check(scenario.evidence())
        missed = [] if scenario.is_enqueued() else ["the start task was not enqueued"]
        return [*found, *missed, *([f"seed {seed}:", *scenario.scheduler.trace] if found or missed else [])]
    finally:
        scenario.context.http.close()


def seeds(shard: int, runs: int = RUNS) -> range:
    """Return the seeds of one test."""
    first = effort.first_seed() + shard * runs
    return range(first, first + runs)


def first_violations(seeds: range, url: str, directory: Path) -> list[str]:
    """Run these orders of events one after the other in one store, until one violates an invariant."""
    database = Database(url)
    try:
        for seed in seeds:
            if found := violations(seed, database, directory):
                return found
            clear(database)
        return []
    finally:
        database.close()


def clear(database: Database) -> None:
    """Delete the rows of the last order of events."""
    with database.transaction() as session:
        # Nodes too: one with an old heartbeat takes no sandbox.
        for table in (StartTask, SandboxLog, SandboxTransition, Sandbox, Node):
            session.execute(delete(table))


@pytest.mark.parametrize("shard", SHARDS)
def test_interleavings_reach_the_desired_state(shard: int, sqlite_stores: SqliteStores, tmp_path: Path) -> None:
    with sqlite_stores.fresh() as url:
        assert first_violations(seeds(shard), url, tmp_path) == []


@pytest.mark.parametrize("shard", POSTGRES_SHARDS)
def test_interleavings_reach_the_desired_state_on_postgresql(
    shard: int, postgres_stores: PostgresStores, tmp_path: Path
) -> None:
    with postgres_stores.fresh() as url:
        assert first_violations(seeds(shard, POSTGRES_RUNS), url, tmp_path) == []


@pytest.mark.parametrize("name", DETECTED_MUTANTS)
def test_mutant_is_detected(
    name: str, sqlite_stores: SqliteStores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least one of these orders of events detects the mutant; otherwise the other tests would prove nothing."""
    patch = Patch(monkeypatch)
    MUTANTS[name](patch)
    with sqlite_stores.fresh() as url:
        found = first_violations(LIVES_OF_MUTANTS, url, tmp_path)
    assert patch.errors == [], "the mutant itself is broken"
    assert found != []
