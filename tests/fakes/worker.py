"""What a worker does, without an engine: it claims a sandbox and writes facts."""

from shared import leases
from shared.clock import now
from shared.database import Database
from shared.models import Sandbox
from shared.store import sandboxes
from shared.store.sandboxes import Fact


def settle(database: Database, sandbox_id: str, *facts: Fact) -> None:
    """Claim, write the facts, the last of which answers the wish, and let go."""
    with database.transaction() as session:
        leases.mark_due(session, Sandbox, sandbox_id, now())
        row = leases.claim(session, Sandbox, sandbox_id, "worker", 5)
        assert row is not None
        for fact in facts:
            sandboxes.move(session, row, fact, observed_generation=row.generation if fact == facts[-1] else None)
        leases.release(session, Sandbox, row.id, row.fence)
