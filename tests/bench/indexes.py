"""`python -m tests.bench.indexes`: the cost of the indexes for counts and operators' lists in writes of sandboxes.

The store has 100,000 sandboxes. The same writes run in alternation with and without the indexes, each in a transaction
that syncs its commit. The time depends on other work of the machine; the bytes in the database's log do not. Full-page
writes of PostgreSQL are off, because their number depends on the time since a checkpoint.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import Connection, Index, Table, insert, update
from sqlmodel import col

from shared.clock import now
from shared.crypto import Vault, new_secret_key
from shared.db.database import Database
from shared.db.migrations import migrate
from shared.ids import new_id
from shared.models import Sandbox
from shared.states import Desired, Status
from tests.bench.seeding import SPEC_ID, seed_sandboxes
from tests.bench.site import POSTGRES
from tests.services.postgres import running_postgres

NAMES = ("by_age", "failed", "gone", "counts", "unreconciled")
# In a store with 100,000 sandboxes.
SIZE = 1_000_000
# The writes of a measurement, and the measurements of each kind.
WRITES, ROUNDS = 150, 5
TABLE: Table = Sandbox.__table__  # type: ignore[attr-defined]
INDEXES: list[Index] = [index for index in TABLE.indexes if str(index.name).removeprefix("ix_sandbox_") in NAMES]
Write = Callable[[Connection, str], object]


def add(connection: Connection, _sandbox_id: str) -> object:
    """Insert a sandbox, as a start does."""
    row = Sandbox(
        owner_id=None, spec_id=SPEC_ID, desired=Desired.RUNNING, status=Status.STARTING, session_key=new_id(),
        session_key_digest=new_id(), due_at=now(),
    )  # fmt: skip
    return connection.execute(insert(TABLE), row.model_dump())


def claim(connection: Connection, sandbox_id: str) -> object:
    """Take the lease of a sandbox."""
    values = {"lease_owner": "w", "lease_until": now() + timedelta(seconds=15), "fence": TABLE.c.fence + 1}
    return _set(connection, sandbox_id, **values)


def set_desired(connection: Connection, sandbox_id: str) -> object:
    """Set a desired state, as a pause does."""
    values = {"desired": Desired.PAUSED, "generation": TABLE.c.generation + 1, "due_at": now(), "updated_at": now()}
    return _set(connection, sandbox_id, **values)


def observe(connection: Connection, sandbox_id: str) -> object:
    """Write a status, as a worker does."""
    values = {"status": Status.PAUSED, "observed_generation": TABLE.c.generation, "due_at": None, "lease_until": None}
    return _set(connection, sandbox_id, **values, status_changed_at=now(), updated_at=now(), pause_kind="frozen")


WRITES_BY_NAME: dict[str, Write] = {"start": add, "claim": claim, "desired state": set_desired, "status": observe}


def _set(connection: Connection, sandbox_id: str, **values: Any) -> object:
    return connection.execute(update(Sandbox).where(col(Sandbox.id) == sandbox_id).values(**values))


def main() -> None:
    """Measure on both databases, and print a row for each write."""
    with running_postgres(*POSTGRES, "full_page_writes=off", durable=True) as server:
        for url in (server.url(server.create()), None):
            with opened(url) as (database, ids):
                report(database, ids)


@contextmanager
def opened(url: str | None) -> Iterator[tuple[Database, list[str]]]:
    """Create a database with sandboxes; yield it with their ids."""
    with TemporaryDirectory(dir=Path("var")) as directory:
        url = url or f"sqlite:///{Path(directory).absolute() / 'bench.db'}"
        migrate(url)
        database = Database(url)
        seeded = seed_sandboxes(database, Vault([new_secret_key()]), SIZE, random.Random(1))
        yield database, [sandbox for owned in seeded.sandboxes.values() for sandbox in owned]
        database.close()


def report(database: Database, ids: list[str]) -> None:
    """Print the median, the minimum and the maximum over all rounds."""
    found: dict[tuple[str, str, bool], list[float]] = {}
    for turn in range(2 * ROUNDS):
        has_indexes = turn % 2 == 0
        with database.engine.execution_options(writing=True).begin() as connection:
            for index in INDEXES:
                (index.create if has_indexes else index.drop)(connection, checkfirst=True)
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            is_sqlite = connection.dialect.name == "sqlite"
            connection.exec_driver_sql("ANALYZE" if is_sqlite else "VACUUM ANALYZE sandbox")
        chosen = random.Random(turn // 2).sample(ids, WRITES)
        for name, write in WRITES_BY_NAME.items():
            for unit, figure in measure(database, write, chosen).items():
                found.setdefault((name, unit, has_indexes), []).append(figure)
    for (name, unit, has_indexes), figures in found.items():
        middle, low, high = statistics.median(figures), min(figures), max(figures)
        label = "with" if has_indexes else "without"
        print(f"{database.engine.dialect.name}, {name}, {label}: {middle:.3f} ({low:.3f}–{high:.3f}) {unit}")  # noqa: T201


def measure(database: Database, write: Write, ids: list[str]) -> dict[str, float]:
    """Measure a write: its milliseconds, and its bytes in the log."""
    with database.engine.execution_options(writing=True).connect() as connection:
        is_sqlite = connection.dialect.name == "sqlite"
        if is_sqlite:
            _raw(connection, "PRAGMA wal_autocheckpoint=0")
            _raw(connection, "PRAGMA wal_checkpoint(TRUNCATE)")
        log, began = _log_size(connection), time.perf_counter()
        for sandbox_id in ids:
            with connection.begin():
                write(connection, sandbox_id)
        seconds, size = time.perf_counter() - began, _log_size(connection) - log
        if is_sqlite:
            _raw(connection, "PRAGMA wal_autocheckpoint=1000")
    return {"ms": seconds / len(ids) * 1000, "bytes": size / len(ids)}


def _log_size(connection: Connection) -> float:
    if connection.dialect.name == "sqlite":
        return Path(f"{connection.engine.url.database}-wal").stat().st_size
    with connection.begin():
        return float(connection.exec_driver_sql("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')").scalar_one())


def _raw(connection: Connection, statement: str) -> None:
    """Run a statement on SQLite outside a transaction."""
    driver: Any = connection.connection.driver_connection
    driver.execute(statement)


if __name__ == "__main__":
    main()
