"""All pairs of operations that take locks, at the same time on the same rows: no two ever wait for each other."""

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
from tests.worker.locks.operations import OPERATIONS
from tests.worker.locks.world import World, make_world
from worker.context import WorkerContext

# There is one lock on SQLite.
pytestmark = [pytest.mark.own_database, pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)]

# At night, as long as that at least.
SECONDS = 60.0
PAIRS = list(combinations_with_replacement(OPERATIONS, 2))
# One of each pair has taken its locks in another order before: these meet each time, whatever the dice say.
INVERTED = [
    ("create", "tend pools"),
    ("create", "hand on"),
    ("create", "set a spec's deadlines"),
    ("resume", "delete a conversation"),
    ("resume", "set a spec's deadlines"),
    ("settle and judge", "hand on"),
    ("move from a lost node", "create"),
    ("retire", "set a spec's deadlines"),
    ("finish a start", "delete a conversation"),
    ("free", "set a spec's deadlines"),
    ("keep unknown containers", "approve unknown containers"),
]
ROUNDS = effort.choose(quick=1, change=2, thorough=15)
# Now and then, between two statements of a transaction.
PAUSES = (0.0, 0.002, 0.006)
# Only those that meet make pauses, not who puts the rows back.
HERE = local()


@pytest.fixture
def world(context: WorkerContext) -> Iterator[World]:
    """The rows; whoever waits for each other is told so at once."""
    with context.database.engine.begin() as connection:
        name = connection.exec_driver_sql("SELECT current_database()").scalar_one()
        connection.exec_driver_sql(f"ALTER DATABASE \"{name}\" SET deadlock_timeout = '20ms'")
    context.database.engine.dispose()
    event.listen(context.database.engine, "after_cursor_execute", pause)
    try:
        yield make_world(context)
    finally:
        event.remove(context.database.engine, "after_cursor_execute", pause)


def pause(*_: object) -> None:
    if getattr(HERE, "pauses", False):
        time.sleep(random.choice(PAUSES))


def test_each_operation_finds_its_rows(world: World) -> None:
    refused = {name: error for name in OPERATIONS if (error := try_alone(world, name)) is not None}
    assert refused == {}


def try_alone(world: World, name: str) -> str | None:
    """Do one operation; how it was refused, if it was."""
    world.put_back()
    try:
        OPERATIONS[name](world)
    except WorkspaceError as error:
        return str(error)
    return None


@pytest.mark.timeout(1800)
def test_no_two_operations_wait_for_each_other(world: World) -> None:
    met: Counter[tuple[str, str]] = Counter()
    found: list[str] = []
    for pair in choose_pairs(random.Random(effort.first_seed())):
        found += meet(world, pair)
        met[pair] += 1
    assert found == []
    if effort.is_thorough():
        assert set(met) == set(PAIRS)
    else:
        assert len(met) == len(OPERATIONS)
        assert Counter(name for pair in met for name in pair) == dict.fromkeys(OPERATIONS, 2)


def choose_pairs(dice: random.Random) -> Iterator[tuple[str, str]]:
    """All pairs at night, until the time is over; for a change each operation with two others, by the seed."""
    if not effort.is_thorough():
        ring = dice.sample(list(OPERATIONS), len(OPERATIONS))
        yield from zip(ring, ring[1:] + ring[:1], strict=True)
        return
    ends_at = time.monotonic() + SECONDS
    yield from dice.sample(PAIRS, len(PAIRS))
    while time.monotonic() < ends_at:
        yield dice.choice(PAIRS)


@pytest.mark.parametrize("pair", INVERTED, ids=" and ".join)
def test_two_that_need_the_same_rows_do_not_wait_for_each_other(world: World, pair: tuple[str, str]) -> None:
    assert [found for _ in range(ROUNDS) for found in meet(world, pair)] == []


def meet(world: World, pair: tuple[str, str]) -> list[str]:
    """Do both at once; what they say of each other's locks."""
    world.put_back()
    together = Barrier(2)

    def act(name: str) -> str | None:
        HERE.pauses = True
        together.wait(30)
        try:
            OPERATIONS[name](world)
        except WorkspaceError:
            return None  # the other one was quicker
        except OperationalError as error:
            if isinstance(error.orig, DeadlockDetected | LockNotAvailable):
                return f"{' and '.join(pair)}: {name}: {type(error.orig).__name__}"
            raise
        return None

    with ThreadPoolExecutor(2) as threads:
        return [said for said in threads.map(act, pair) if said is not None]
