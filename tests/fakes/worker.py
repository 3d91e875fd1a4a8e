"""A worker without an engine: it claims a sandbox and writes its status."""

from shared.clock import now
from shared.db.database import Database
from shared.leasing import leases
from shared.models import Sandbox
from shared.sandboxes import status as sandbox_status
from shared.sandboxes.status import ObservedState


def settle(database: Database, sandbox_id: str, *states: ObservedState) -> None:
    """Claim the sandbox, write the states, with the last one as the desired state, and release the lease."""
    with database.transaction() as session:
        leases.mark_due(session, Sandbox, sandbox_id, now())
        row = leases.claim(session, Sandbox, sandbox_id, "worker", 5)
        assert row is not None
        for state in states:
            sandbox_status.set_status(
                session, row, state, observed_generation=row.generation if state == states[-1] else None
            )
        leases.release(session, Sandbox, row.id, row.fence)
