"""Claims and refills of the test spec's warm pool."""

from sqlmodel import Session

from shared.clock import after
from shared.db.database import Database
from shared.models import Sandbox
from shared.sandboxes import specs
from shared.warm_pool import pool as warm_pool
from shared.warm_pool import start as sandbox_start
from tests.factories import SPEC_ID, VAULT, ApiUser

LATER = 5.0


def claim(session: Session, owner: ApiUser, **own: int | None) -> Sandbox:
    spec = specs.get_spec(session, SPEC_ID)
    return sandbox_start.start(
        session, VAULT, owner_id=owner.id, spec=spec, due_at=after(LATER), own_deadlines=own
    ).sandbox


def reconcile(database: Database, boots: int = 10) -> list[tuple[str, str]]:
    """Reconcile the pool as a sweep does: one transaction for each new sandbox."""
    with database.transaction() as session:
        changed = warm_pool.remove_unusable(session, SPEC_ID, due_at=after(LATER))
    while (created := make_warm_sandbox(database, boots)) is not None:
        changed.append(created)
    return [(row.id, row.desired) for row in changed]


def make_warm_sandbox(database: Database, boots: int) -> Sandbox | None:
    with database.transaction() as session:
        return make_warm_sandbox_in(session, boots)


def make_warm_sandbox_in(session: Session, boots: int = 10) -> Sandbox | None:
    started = warm_pool.start_warm_sandbox(session, VAULT, SPEC_ID, boots=boots, due_at=after(LATER))
    return started.sandbox if started else None
