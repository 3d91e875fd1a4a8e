"""Which of a user's sandboxes the next conversation joins, where the user wants them grouped (wire contract 2.1).

V1 calls the oldest sandbox the least recently used, and starts a new one when the choice fails (its defect 45): here
the use is what is looked at, and an error is one.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sqlalchemy import func, or_
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from shared.changes import recorder as change_recorder
from shared.clock import now
from shared.models import Conversation, Node, Sandbox, StartTask
from shared.models.conversations import UNFINISHED
from shared.nodes import placement
from shared.sandboxes import queries as sandbox_queries
from shared.sql.prepared import give
from shared.states import Desired, Status
from shared.users import settings_store

# Who has so many conversations, those being started too, gets no more: V1's max_num_conversations_per_sandbox.
MAX_CONVERSATIONS = 20

LISTED = (
    select(func.count())
    .select_from(Conversation)
    .where(Conversation.sandbox_id == Sandbox.id, col(Conversation.listed))
    .correlate(Sandbox)
    .scalar_subquery()
)
STARTING = (
    select(func.count())
    .select_from(StartTask)
    .where(StartTask.sandbox_id == Sandbox.id, *UNFINISHED)
    .correlate(Sandbox)
    .scalar_subquery()
)
OLDEST = (col(Sandbox.created_at), col(Sandbox.id))
# By the names of V1's strategies; what is none of them, NO_GROUPING above all, groups nothing.
ORDERS: Mapping[str, tuple[Any, ...]] = {
    "ADD_TO_ANY": OLDEST,
    "GROUP_BY_NEWEST": (col(Sandbox.created_at).desc(), col(Sandbox.id).desc()),
    "LEAST_RECENTLY_USED": (col(Sandbox.last_active_at), *OLDEST),
    "FEWEST_CONVERSATIONS": (LISTED + STARTING, *OLDEST),
}


def choose(session: Session, owner_id: str, spec_id: str, strategy: str) -> Sandbox | None:
    """The running sandbox that the strategy puts first, locked; None: a new one is wanted.

    It was made from that spec, is to go on running, is on a node that takes sandboxes, and has a place left. Until the
    transaction ends, no other start of the user chooses: two could take the same last place. Call it before a sandbox
    is locked.

    Raises:
        NotFound: there is no such user.
    """
    if strategy not in ORDERS:
        return None
    settings_store.lock(session, owner_id)
    fitting = _fitting(owner_id, spec_id)
    for sandbox_id in session.exec(fitting.order_by(*ORDERS[strategy])).all():
        # One lock at a time: with the savepoint, what does not fit is let go of.
        with suppress(_DoesNotFit), change_recorder.savepoint(session):
            return _lock_fitting(session, fitting, sandbox_id)
    return None


class _DoesNotFit(Exception):
    """Until it was locked, the sandbox was paused, deleted or filled."""


def _lock_fitting(session: Session, fitting: SelectOfScalar[str], sandbox_id: str) -> Sandbox:
    sandbox: Sandbox | None = session.scalars(sandbox_queries.LOCK, give(sandbox_id=sandbox_id)).one_or_none()
    if sandbox is None or session.exec(fitting.where(Sandbox.id == sandbox_id)).first() is None:
        raise _DoesNotFit
    return sandbox


def _fitting(owner_id: str, spec_id: str) -> SelectOfScalar[str]:
    stays = or_(col(Sandbox.expires_at).is_(None), col(Sandbox.expires_at) > now())
    runs = (Sandbox.desired == Desired.RUNNING, Sandbox.status == Status.RUNNING, stays)
    mine = select(Sandbox.id).join(Node, col(Node.id) == col(Sandbox.node_id)).where(Sandbox.owner_id == owner_id)
    return mine.where(
        Sandbox.spec_id == spec_id, *runs, *placement.takes_sandboxes(), LISTED + STARTING < MAX_CONVERSATIONS
    )
