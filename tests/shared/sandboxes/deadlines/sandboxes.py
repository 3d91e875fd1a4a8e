"""Sandboxes with deadlines, and actions on them."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlmodel import Session

from shared.clock import now
from shared.db.database import Database
from shared.models import Sandbox, SandboxSpec
from shared.sandboxes import deadlines, desired_state, due_deadlines
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes.due_deadlines import DueDeadline
from shared.states import Desired
from shared.warm_pool import start as sandbox_start
from tests.factories import (
    NODE_ID,
    SPEC_ID,
    VAULT,
    ApiUser,
    make_sandbox,
)
from tests.rows import as_stored

CHAIN: dict[str, Any] = {"freeze_after_seconds": 60, "stop_after_seconds": 600, "delete_after_seconds": 6000}


LONG_AGO = timedelta(hours=1)


def make(database: Database, owner: ApiUser, **columns: Any) -> Sandbox:
    """A sandbox with its deadlines computed, idle for an hour by default."""
    defaults = {"status_changed_at": now() - LONG_AGO, "last_active_at": now() - LONG_AGO}
    sandbox = make_sandbox(database, owner, **(defaults | columns))
    write(database, lambda session: deadlines.refresh(session, sandbox.id))
    return as_stored(database, sandbox)


def write(database: Database, act: Callable[[Session], Any]) -> Any:
    with database.transaction() as session:
        return act(session)


def deadline(database: Database, sandbox: Sandbox) -> tuple[datetime | None, str | None]:
    found = as_stored(database, sandbox)
    return found.deadline_at, found.deadline_does


def overdue(database: Database, node_id: str = NODE_ID) -> list[DueDeadline]:
    with database.reading() as session:
        return list(due_deadlines.overdue(session, node_id))


def apply_all(database: Database, node_id: str = NODE_ID) -> list[bool]:
    return [write(database, partial(apply, deadline=found)) for found in overdue(database, node_id)]


def apply(session: Session, deadline: DueDeadline) -> bool:
    return due_deadlines.apply_deadline(session, deadline, due_at=now())


def set_desired(session: Session, sandbox: Sandbox, desired: Desired, owner: ApiUser) -> None:
    """Write the desired state as the routes do."""
    row = sandbox_queries.get(session, sandbox.id, owner.id, lock=True)
    desired_state.set_desired(session, row, desired, due_at=now())


def create(session: Session, user: ApiUser, **columns: Any) -> Sandbox:
    spec = session.get_one(SandboxSpec, SPEC_ID)
    return sandbox_start.start(session, VAULT, owner_id=user.id, spec=spec, due_at=now(), **columns).sandbox


def change(session: Session, sandbox: Sandbox, owner: ApiUser, **own: int | None) -> None:
    """Set deadlines as the route does."""
    row = sandbox_queries.get(session, sandbox.id, owner.id, lock=True)
    deadlines.set_own(session, row, own)
