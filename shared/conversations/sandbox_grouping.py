"""Choice of the sandbox that the next conversation joins, by the user's grouping strategy (wire contract 2.1).

V1 takes the oldest sandbox for the least recently used one, and starts a new sandbox when the choice fails (its
defect 45). This service compares the times of the last activity, and reports an error as an error.
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
from shared.sql.statements import bind_values
from shared.states import Desired, Status
from shared.users import settings_store

# The limit of conversations in a sandbox, with those being started: V1's max_num_conversations_per_sandbox.
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
# By the names of V1's strategies. Any other name, such as NO_GROUPING, groups nothing.
ORDERS: Mapping[str, tuple[Any, ...]] = {
    "ADD_TO_ANY": OLDEST,
    "GROUP_BY_NEWEST": (col(Sandbox.created_at).desc(), col(Sandbox.id).desc()),
    "LEAST_RECENTLY_USED": (col(Sandbox.last_active_at), *OLDEST),
    "FEWEST_CONVERSATIONS": (LISTED + STARTING, *OLDEST),
}


def choose(session: Session, owner_id: str, spec_id: str, strategy: str) -> Sandbox | None:
    """Choose and lock the running sandbox that the strategy puts first.

    The sandbox was made from that spec, its desired state is RUNNING, its node accepts sandboxes, and it has a free
    place. The user's other starts wait until the transaction ends: two of them could take the same last place.
    Call this function before a sandbox is locked.

    Returns:
        None if the conversation needs a new sandbox.

    Raises:
        NotFound: the user does not exist.
    """
    if strategy not in ORDERS:
        return None
    settings_store.lock(session, owner_id)
    fitting = _fitting(owner_id, spec_id)
    for sandbox_id in session.exec(fitting.order_by(*ORDERS[strategy])).all():
        # One lock at a time: the end of the savepoint releases a sandbox that does not fit.
        with suppress(_DoesNotFit), change_recorder.savepoint(session):
            return _lock_fitting(session, fitting, sandbox_id)
    return None


class _DoesNotFit(Exception):
    """The sandbox was paused, deleted or filled before it was locked."""


def _lock_fitting(session: Session, fitting: SelectOfScalar[str], sandbox_id: str) -> Sandbox:
    sandbox: Sandbox | None = session.scalars(sandbox_queries.LOCK, bind_values(sandbox_id=sandbox_id)).one_or_none()
    if sandbox is None or session.exec(fitting.where(Sandbox.id == sandbox_id)).first() is None:
        raise _DoesNotFit
    return sandbox


def _fitting(owner_id: str, spec_id: str) -> SelectOfScalar[str]:
    stays = or_(col(Sandbox.expires_at).is_(None), col(Sandbox.expires_at) > now())
    runs = (Sandbox.desired == Desired.RUNNING, Sandbox.status == Status.RUNNING, stays)
    owned = select(Sandbox.id).join(Node, col(Node.id) == col(Sandbox.node_id)).where(Sandbox.owner_id == owner_id)
    return owned.where(
        Sandbox.spec_id == spec_id, *runs, *placement.takes_sandboxes(), LISTED + STARTING < MAX_CONVERSATIONS
    )
