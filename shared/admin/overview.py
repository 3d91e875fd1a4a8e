"""The operators' first page: counts, waiting work, failures, warm pools. Each list has only the first few rows."""

from collections import Counter
from datetime import datetime
from typing import NamedTuple

from sqlmodel import Session, col, select

from shared.admin.sandbox_lists import ENDED, WITHOUT_REQUEST, ListedSandbox, with_owners
from shared.leasing import leases
from shared.leasing.leases import Backlog
from shared.models import Conversation, Sandbox, SandboxSpec, StartTask, User
from shared.nodes.placement import may_have_container
from shared.sandboxes import specs
from shared.states import Status
from shared.warm_pool import pool as warm_pool
from shared.warm_pool.policy import backoff_until

# Max number of sandboxes that are counted: the newest ones.
MAX_COUNTED = 10_000
MAX_SHOWN = 10


class SandboxCounts(NamedTuple):
    """The numbers of sandboxes by status; of the newest `MAX_COUNTED` if `is_cut`."""

    by_status: dict[str, int]
    is_cut: bool


class WaitingSandbox(NamedTuple):
    """A sandbox that waits for a worker, or is being worked on; `since`: when its row last changed."""

    listed: ListedSandbox
    since: datetime
    is_leased: bool


class WaitingStart(NamedTuple):
    """A start of a conversation that has not ended, and its owner's name."""

    task: StartTask
    owner: str


class Pool(NamedTuple):
    """A warm pool: its spec, its ready and its booting sandboxes, and the end of its backoff."""

    spec: SandboxSpec
    ready: int
    booting: int
    backoff_until: datetime | None


def count_sandboxes(session: Session) -> SandboxCounts:
    """Count the sandboxes that are not deleted."""
    newest = (
        select(Sandbox.status)
        .where(may_have_container())
        .order_by(col(Sandbox.created_at).desc(), col(Sandbox.id).desc())
    )
    found = session.exec(newest.limit(MAX_COUNTED + 1)).all()
    return SandboxCounts(dict(Counter(found[:MAX_COUNTED])), len(found) > MAX_COUNTED)


def backlogs(session: Session) -> dict[str, Backlog]:
    """The rows that no worker has claimed, by kind."""
    return {
        "Sandboxes": leases.backlog(session, Sandbox),
        "Starts of conversations": leases.backlog(session, StartTask),
        "Conversations": leases.backlog(session, Conversation),
    }


def waiting_sandboxes(session: Session) -> list[WaitingSandbox]:
    """The sandboxes that have been due for the longest time, then those that workers have leased."""
    due = select(Sandbox).where(col(Sandbox.due_at).is_not(None)).order_by(col(Sandbox.due_at))
    held = select(Sandbox).where(col(Sandbox.lease_until).is_not(None)).order_by(col(Sandbox.lease_until))
    found = {row.id: row for query in (due, held) for row in session.exec(query.limit(MAX_SHOWN)).all()}
    return [
        WaitingSandbox(listed, listed.sandbox.updated_at, listed.sandbox.lease_until is not None)
        for listed in with_owners(session, list(found.values()))
    ]


def waiting_starts(session: Session) -> list[WaitingStart]:
    """The starts of conversations that have been due for the longest time."""
    due = select(StartTask, User.name).options(*WITHOUT_REQUEST).join(User, col(User.id) == col(StartTask.owner_id))
    found = due.where(col(StartTask.due_at).is_not(None)).order_by(col(StartTask.due_at)).limit(MAX_SHOWN)
    return [WaitingStart(task, owner) for task, owner in session.exec(found).all()]


def failures(session: Session) -> list[ListedSandbox]:
    """The sandboxes that failed most recently and are still in ERROR."""
    failed = select(Sandbox).where(ENDED[Status.ERROR])
    newest = failed.order_by(col(Sandbox.status_changed_at).desc(), col(Sandbox.id).desc()).limit(MAX_SHOWN)
    return with_owners(session, session.exec(newest).all())


def pools(session: Session) -> list[Pool]:
    """The warm pools of all specs that have or had one."""
    counted = warm_pool.count(session)
    return [
        Pool(spec, *counted.get(spec.id, (0, 0)), backoff_until(spec.warm_failures, spec.warm_failed_at))
        for spec in specs.list_specs(session)
        if spec.warm_target or spec.warm_most or spec.id in counted
    ]
