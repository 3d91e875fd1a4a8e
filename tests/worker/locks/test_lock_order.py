"""All pairs of operations that take locks, concurrently on the same rows: no pair deadlocks."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations_with_replacement
from threading import Barrier, local

import pytest
from psycopg.errors import DeadlockDetected, LockNotAvailable
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from shared.errors import WorkspaceError
from tests import effort
from tests.worker.locks.contended_rows import ContendedRows, make_contended_rows
from tests.worker.locks.operations import OPERATIONS
from worker.context import WorkerContext

# SQLite has one lock only.
pytestmark = [pytest.mark.own_database, pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)]

# Min duration of a thorough run.
SECONDS = 60.0
PAIRS = list(combinations_with_replacement(OPERATIONS, 2))
# Pairs that deadlocked before, because one operation took its locks in another order. They run every time.
INVERTED = [
    ("create", "reconcile pools"),
    ("create without a quota", "make a warm sandbox"),
    ("create", "reschedule"),
    ("create", "set a spec's deadlines"),
    ("resume", "delete a conversation"),
    ("resume", "set a spec's deadlines"),
    ("write a status and record the result", "reschedule"),
    ("move from a lost node", "create"),
    ("remove warm sandboxes", "set a spec's deadlines"),
    ("finish a start", "delete a conversation"),
    ("begin a conversation", "delete a conversation"),
    ("free", "set a spec's deadlines"),
    ("keep unknown containers", "approve unknown containers"),
]
REPEATS = effort.choose(quick=1, change=2, thorough=15)
# Random pauses after the statements of a transaction.
PAUSES = (0.0, 0.002, 0.006)
# Only the threads of a pair pause, not the one that restores the rows.
THREAD = local()


@pytest.fixture
def rows(context: WorkerContext) -> Iterator[ContendedRows]:
    """The rows, on a database that reports deadlocks immediately."""
    with context.database.engine.begin() as connection:
        name = connection.exec_driver_sql("SELECT current_database()").scalar_one()
        connection.exec_driver_sql(f"ALTER DATABASE \"{name}\" SET deadlock_timeout = '20ms'")
    context.database.engine.dispose()
    event.listen(context.database.engine, "after_cursor_execute", pause)
    try:
        yield make_contended_rows(context)
    finally:
        event.remove(context.database.engine, "after_cursor_execute", pause)


def pause(*_: object) -> None:
    if getattr(THREAD, "pauses", False):
        time.sleep(random.choice(PAUSES))


def test_each_operation_finds_its_rows(rows: ContendedRows) -> None:
    refused = {name: error for name in OPERATIONS if (error := try_alone(rows, name)) is not None}
    assert refused == {}


def try_alone(rows: ContendedRows, name: str) -> str | None:
    """Run one operation, and return the error if it was refused."""
    rows.restore()
    try:
        OPERATIONS[name](rows)
    except WorkspaceError as error:
        return str(error)
    return None


@pytest.mark.timeout(1800)
def test_no_pair_of_operations_deadlocks(rows: ContendedRows) -> None:
    met: Counter[tuple[str, str]] = Counter()
    found: list[str] = []
    for pair in choose_pairs(random.Random(effort.first_seed())):
        found += run_concurrently(rows, pair)
        met[pair] += 1
    assert found == []
    if effort.is_thorough():
        assert set(met) == set(PAIRS)
    else:
        assert len(met) == len(OPERATIONS)
        assert Counter(name for pair in met for name in pair) == dict.fromkeys(OPERATIONS, 2)


def choose_pairs(dice: random.Random) -> Iterator[tuple[str, str]]:
    """Choose all pairs for a thorough run; for others, each operation with two others, by the seed."""
    if not effort.is_thorough():
        ring = dice.sample(list(OPERATIONS), len(OPERATIONS))
        yield from zip(ring, ring[1:] + ring[:1], strict=True)
        return
    ends_at = time.monotonic() + SECONDS
    yield from dice.sample(PAIRS, len(PAIRS))
    while time.monotonic() < ends_at:
        yield dice.choice(PAIRS)


@pytest.mark.timeout(1800)
def test_pairs_that_once_deadlocked_no_longer_do(rows: ContendedRows) -> None:
    # In one test, because creating the rows takes longer than running a pair of operations.
    assert [found for pair in INVERTED for _ in range(REPEATS) for found in run_concurrently(rows, pair)] == []


def run_concurrently(rows: ContendedRows, pair: tuple[str, str]) -> list[str]:
    """Run both operations concurrently, and return their deadlocks and lock timeouts."""
    rows.restore()
    together = Barrier(2)

    def act(name: str) -> str | None:
        THREAD.pauses = True
        together.wait(30)
        try:
            OPERATIONS[name](rows)
        except WorkspaceError:
            return None  # the other operation came first
        except OperationalError as error:
            if isinstance(error.orig, DeadlockDetected | LockNotAvailable):
                return f"{' and '.join(pair)}: {name}: {type(error.orig).__name__}"
            raise
        return None

    with ThreadPoolExecutor(2) as threads:
        return [problem for problem in threads.map(act, pair) if problem is not None]
