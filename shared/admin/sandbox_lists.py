"""Sandboxes of all users: a list with filters, and one sandbox with its history.

A page reads a limited number of rows, so that a rare match among very many sandboxes costs no more than a frequent
one. If this limit ends the page, the id of the next page is the position at which the search continues.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import and_, literal_column
from sqlalchemy.orm import defer
from sqlmodel import Session, col, select

from shared.container_logs import kept_logs
from shared.errors import NotFound
from shared.models import Conversation, Node, Sandbox, SandboxLog, SandboxTransition, StartTask, User
from shared.nodes.placement import may_have_container
from shared.sql.pagination import Order, Page, encode_page_id, put_in_order
from shared.states import Status

# Max rows that one page reads.
MAX_EXAMINED = 5_000
# Columns of a start task that hold up to 16 MB, and that no page shows.
WITHOUT_REQUEST = [defer(getattr(StartTask, name), raiseload=True) for name in ("request", "secrets")]
# Transitions, conversations and starts shown with one sandbox.
MAX_HISTORY = 100
MAX_RELATED = 20

BY_AGE = Order(col(Sandbox.created_at), col(Sandbox.id), descending=True)
BY_END = Order(col(Sandbox.status_changed_at), col(Sandbox.id), descending=True)
# Word for word as in the indexes: with a bind parameter, the database could not use them.
IS_LISTED = col(Sandbox.status_changed_at).is_not(None)
ENDED = {
    status: and_(col(Sandbox.status) == literal_column(f"'{status}'"), IS_LISTED)
    for status in (Status.ERROR, Status.DELETED)
}


@dataclass(frozen=True)
class SandboxFilter:
    """Conditions of a list; None: any."""

    # Without a status, deleted sandboxes are left out.
    status: Status | None = None
    node: str | None = None
    # The name of a user.
    owner: str | None = None
    reason: str | None = None


class ListedSandbox(NamedTuple):
    """A sandbox, and the name of its owner; None for a warm one."""

    sandbox: Sandbox
    owner: str | None


class SandboxHistory(NamedTuple):
    """A sandbox with what happened to it.

    Args:
        transitions: the last ones, oldest first.
        is_cut: whether there are earlier ones.
        starts: the newest start tasks of conversations in it.
        logs: the kept logs of its containers, oldest first.
    """

    listed: ListedSandbox
    node: Node | None
    transitions: list[SandboxTransition]
    is_cut: bool
    conversations: Sequence[Conversation]
    starts: Sequence[StartTask]
    logs: Sequence[SandboxLog]


def search(session: Session, selection: SandboxFilter, page_id: str | None, limit: int) -> Page[ListedSandbox]:
    """A page of sandboxes, newest first: failed and deleted ones by the time of that change, others by age.

    A page may be empty although another one follows, which continues the search.

    Raises:
        Invalid: the page id is not from this list.
    """
    owner_id = _owner_id(session, selection.owner)
    if selection.owner and owner_id is None:
        return Page([], None)
    order = BY_END if selection.status in ENDED else BY_AGE
    window = _window(selection, owner_id, order, page_id)
    ids = list(session.exec(_matching(window, selection, owner_id, order).limit(limit + 1)).all())
    if len(ids) > limit:
        return Page(_read(session, ids[:limit]), _page_after(session, order, ids[limit - 1]))
    last = session.exec(_in_order(select(window.c.id), window, order).offset(MAX_EXAMINED - 1).limit(1)).first()
    return Page(_read(session, ids), _page_after(session, order, last) if last else None)


def read_history(session: Session, sandbox_id: str) -> SandboxHistory:
    """One sandbox with its history, even if it is deleted.

    Raises:
        NotFound: there is none with that id.
    """
    listed = next(iter(_read(session, [sandbox_id])), None)
    if listed is None:
        raise NotFound("sandbox", sandbox_id)
    newest = select(SandboxTransition).where(SandboxTransition.sandbox_id == sandbox_id)
    found = session.exec(newest.order_by(col(SandboxTransition.id).desc()).limit(MAX_HISTORY + 1)).all()
    conversations = select(Conversation).where(Conversation.sandbox_id == sandbox_id)
    starts = select(StartTask).options(*WITHOUT_REQUEST).where(StartTask.sandbox_id == sandbox_id)
    return SandboxHistory(
        listed,
        session.get(Node, listed.sandbox.node_id) if listed.sandbox.node_id else None,
        list(reversed(found[:MAX_HISTORY])),
        len(found) > MAX_HISTORY,
        session.exec(conversations.order_by(col(Conversation.created_at).desc()).limit(MAX_RELATED)).all(),
        session.exec(starts.order_by(col(StartTask.created_at).desc()).limit(MAX_RELATED)).all(),
        kept_logs.list_kept(session, sandbox_id),
    )


def with_owners(session: Session, sandboxes: Sequence[Sandbox]) -> list[ListedSandbox]:
    """The sandboxes in their order, each with the name of its owner."""
    owners = {row.owner_id for row in sandboxes if row.owner_id}
    names = dict(session.exec(select(User.id, User.name).where(col(User.id).in_(owners))).all()) if owners else {}
    return [ListedSandbox(row, names.get(row.owner_id or "")) for row in sandboxes]


def _owner_id(session: Session, name: str | None) -> str | None:
    return session.exec(select(User.id).where(User.name == name)).first() if name else None


def _window(selection: SandboxFilter, owner_id: str | None, order: Order, page_id: str | None) -> Any:
    """The rows that the page reads, selected by the one condition that has an index in this order."""
    columns = (Sandbox.id, Sandbox.status, Sandbox.node_id, Sandbox.owner_id, Sandbox.reason)
    rows = select(*columns, order.column).where(_indexed(selection, owner_id))  # type: ignore[call-overload]
    return put_in_order(rows, order, page_id).limit(MAX_EXAMINED).subquery()


def _indexed(selection: SandboxFilter, owner_id: str | None) -> Any:
    if selection.status in ENDED:
        return ENDED[selection.status]
    return col(Sandbox.owner_id) == owner_id if owner_id else and_(may_have_container(), IS_LISTED)


def _matching(window: Any, selection: SandboxFilter, owner_id: str | None, order: Order) -> Any:
    rows = select(window.c.id)
    status = window.c.status
    rows = rows.where(status == selection.status if selection.status else status != Status.DELETED)
    for name, value in (("node_id", selection.node), ("reason", selection.reason), ("owner_id", owner_id)):
        rows = rows.where(window.c[name] == value) if value else rows
    return _in_order(rows, window, order)


def _in_order(rows: Any, window: Any, order: Order) -> Any:
    return rows.order_by(window.c[order.column.key].desc(), window.c.id.desc())


def _read(session: Session, ids: Sequence[str]) -> list[ListedSandbox]:
    found = {row.id: row for row in session.exec(select(Sandbox).where(col(Sandbox.id).in_(ids))).all()}
    return with_owners(session, [found[row_id] for row_id in ids if row_id in found])


def _page_after(session: Session, order: Order, row_id: str) -> str | None:
    row = session.get(Sandbox, row_id)
    return encode_page_id(order, getattr(row, order.column.key), row_id) if row else None
