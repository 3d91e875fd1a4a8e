"""The cost of list versions in a write of a desired state, compared with the same write without their triggers."""

import time
from contextlib import ExitStack, closing

from sqlalchemy import text

from shared.clock import after
from shared.db.database import Database
from shared.models import Sandbox
from shared.sandboxes.desired_state import set_desired_and_commit
from shared.states import Desired
from tests.bench.figures import Figure, Runs
from tests.bench.site import running_store
from tests.factories import make_sandbox, make_user

SAMPLES = 300
TRIGGERS = {
    "postgresql": (
        "SELECT tgname, relname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid "
        "WHERE tgname LIKE 'note_list_change%' OR tgname LIKE 'renew_list_versions%'"
    ),
    "sqlite": "SELECT name, tbl_name FROM sqlite_master WHERE type = 'trigger' AND name LIKE '%_changes_lists_by_%'",
}


def list_versions(kind: str, runs: int) -> Figure:
    """Measure a write of a sandbox's desired state in the two stores in alternation."""
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(Database(stack.enter_context(running_store(kind))))) for _ in range(2)]
        _drop_triggers(stores[1])
        sandboxes = [make_sandbox(store, make_user(store, "alice")) for store in stores]
        found: tuple[Runs, Runs] = ([], [])
        for _ in range(runs):
            for taken in found:
                taken.append([])
            for _ in range(SAMPLES):
                for store, sandbox, taken in zip(stores, sandboxes, found, strict=True):
                    taken[-1].append(_set_desired(store, sandbox))
    return Figure("a desired state in the store, with list versions", found[0], "without them", found[1])


def _set_desired(database: Database, sandbox: Sandbox) -> float:
    began = time.perf_counter()
    set_desired_and_commit(database, sandbox.id, str(sandbox.owner_id), Desired.PAUSED, due_at=after(5))
    return time.perf_counter() - began


def _drop_triggers(database: Database) -> None:
    kind = database.engine.dialect.name
    with database.transaction() as session:
        triggers = session.connection().execute(text(TRIGGERS[kind])).all()
        assert triggers, "the store has no such triggers"
        for name, table in triggers:
            session.connection().exec_driver_sql(f"DROP TRIGGER {name}" + (f" ON {table}" if kind != "sqlite" else ""))
