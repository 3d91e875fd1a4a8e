"""All pairs of operations that take locks, at the same time on the same rows: no two ever wait for each other."""

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations_with_replacement
from threading import Barrier

import pytest
from psycopg.errors import DeadlockDetected, LockNotAvailable
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from shared.errors import WorkspaceError
from tests import effort
from tests.worker.locks.operations import OPERATIONS
from tests.worker.locks.world import World, make_world
from worker.parts import Parts

# There is one lock on SQLite.
pytestmark = [pytest.mark.own_database, pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)]

SECONDS = effort.choose(quick=3.0, change=3.0, thorough=60.0)
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
]
ROUNDS = effort.choose(quick=1, change=2, thorough=15)
# Now and then, between two statements of a transaction.
PAUSES = (0.0, 0.002, 0.006)


@pytest.fixture
def world(parts: Parts) -> Iterator[World]:
    """The rows; whoever waits for each other is told so at once."""
    with parts.database.engine.begin() as connection:
        name = connection.exec_driver_sql("SELECT current_database()").scalar_one()
        connection.exec_driver_sql(f"ALTER DATABASE \"{name}\" SET deadlock_timeout = '20ms'")
    parts.database.engine.dispose()
    event.listen(parts.database.engine, "after_cursor_execute", pause)
    try:
        yield make_world(parts)
    finally:
        event.remove(parts.database.engine, "after_cursor_execute", pause)


def pause(*_: object) -> None:
    time.sleep(random.choice(PAUSES))


@pytest.mark.timeout(600)
def test_no_two_operations_wait_for_each_other(world: World) -> None:
    dice = random.Random(effort.first_seed())
    ends_at = time.monotonic() + SECONDS
    shuffled: list[tuple[str, str]] = []
    found: list[str] = []
    while time.monotonic() < ends_at:
        shuffled = shuffled or dice.sample(PAIRS, len(PAIRS))
        found += meet(world, shuffled.pop())
    assert found == []


@pytest.mark.parametrize("pair", INVERTED, ids=" and ".join)
def test_two_that_need_the_same_rows_do_not_wait_for_each_other(world: World, pair: tuple[str, str]) -> None:
    assert [found for _ in range(ROUNDS) for found in meet(world, pair)] == []


def meet(world: World, pair: tuple[str, str]) -> list[str]:
    """Do both at once; what they say of each other's locks."""
    world.put_back()
    together = Barrier(2)

    def act(name: str) -> str | None:
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
