"""Conversations: what is stored of them, and the lists made from it."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, delete, func
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from shared.clock import now
from shared.errors import NotFound
from shared.models import Conversation, Event, Sandbox, StartTask
from shared.states import Stage
from shared.store.pages import Order, Page, read_page

SORT_ORDERS = {
    "CREATED_AT": (col(Conversation.created_at), False),
    "CREATED_AT_DESC": (col(Conversation.created_at), True),
    "UPDATED_AT": (col(Conversation.updated_at), False),
    "UPDATED_AT_DESC": (col(Conversation.updated_at), True),
    "TITLE": (col(Conversation.title), False),
    "TITLE_DESC": (col(Conversation.title), True),
}


@dataclass(frozen=True)
class ConversationFilter:
    """Which of the owner's conversations are meant; a None filters nothing."""

    title_contains: str | None = None
    created_from: datetime | None = None
    created_before: datetime | None = None
    updated_from: datetime | None = None
    updated_before: datetime | None = None
    sandbox_id: str | None = None
    with_sub_conversations: bool = False


def find(session: Session, conversation_id: str, *, lock: bool = False) -> Conversation | None:
    """The conversation of that id, whoever owns it."""
    return session.get(Conversation, conversation_id, with_for_update=lock or None)


def get(session: Session, conversation_id: str, owner_id: str) -> Conversation:
    """The owner's conversation of that id.

    Raises:
        NotFound: there is none, its start has not succeeded yet, or it is somebody else's.
    """
    conversation = find(session, conversation_id)
    if conversation is None or conversation.owner_id != owner_id or not conversation.listed:
        raise NotFound("conversation", conversation_id)
    return conversation


def get_shown(session: Session, conversation_id: str, owner_id: str) -> tuple[Conversation, Sandbox]:
    """The owner's conversation of that id with its sandbox.

    Raises:
        NotFound: as for `get`.
    """
    found = get_many(session, [conversation_id], owner_id)[0]
    if found is None:
        raise NotFound("conversation", conversation_id)
    return found


def default_title(conversation_id: str) -> str:
    """The title until there is a better one, as V1 makes it (wire contract 3.2, step 12)."""
    return f"Conversation {conversation_id[:5]}"


def welcome(session: Session, conversation_id: str, sandbox: Sandbox) -> Conversation | None:
    """The conversation a sandbox reports on, locked: a known one, or one that a client created in the sandbox itself.

    Returns:
        None when the conversation is another sandbox's, its start has failed, or the sandbox has no owner.
    """
    conversation = find(session, conversation_id, lock=True)
    if conversation is None and sandbox.owner_id is not None:
        task = session.exec(select(StartTask).where(StartTask.conversation_id == conversation_id)).first()
        if task is None or (task.sandbox_id == sandbox.id and task.stage != Stage.ERROR):
            conversation = _adopt(session, conversation_id, sandbox, sandbox.owner_id, listed=task is None)
    mine = conversation is not None and conversation.sandbox_id == sandbox.id
    return conversation if mine else None


def publish(session: Session, conversation_id: str) -> None:
    """Let the owner see the conversation: its start has succeeded."""
    conversation = find(session, conversation_id, lock=True)
    if conversation is not None:
        conversation.listed = True
        conversation.updated_at = now()


def discard_unlisted(session: Session, conversation_id: str) -> None:
    """Forget a conversation whose start failed, with what its webhooks had stored."""
    conversation = find(session, conversation_id, lock=True)
    if conversation is not None and not conversation.listed:
        session.execute(delete(Event).where(col(Event.conversation_id) == conversation_id))
        session.delete(conversation)


def get_many(session: Session, ids: list[str], owner_id: str) -> list[tuple[Conversation, Sandbox] | None]:
    """The owner's conversations of those ids in order with their sandboxes, None for an unknown one."""
    statement = _with_sandbox().where(
        col(Conversation.id).in_(ids), Conversation.owner_id == owner_id, col(Conversation.listed)
    )
    found = {conversation.id: (conversation, sandbox) for conversation, sandbox in session.exec(statement).all()}
    return [found.get(conversation_id) for conversation_id in ids]


def search(
    session: Session,
    owner_id: str,
    which: ConversationFilter,
    *,
    sort_order: str,
    page_id: str | None,
    limit: int,
) -> Page[tuple[Conversation, Sandbox]]:
    """A page of the owner's conversations with their sandboxes."""
    column, descending = SORT_ORDERS[sort_order]
    order = Order(column, col(Conversation.id), descending)
    return read_page(session, _with_sandbox().where(*_conditions(owner_id, which)), order, page_id, limit)


def count(session: Session, owner_id: str, which: ConversationFilter) -> int:
    """How many conversations `search` would list with this filter."""
    return session.exec(select(func.count()).select_from(Conversation).where(*_conditions(owner_id, which))).one()


def children(session: Session, parent_ids: list[str], owner_id: str) -> dict[str, list[str]]:
    """The ids of the sub-conversations of each parent, oldest first."""
    statement = select(Conversation.parent_id, Conversation.id).where(
        col(Conversation.parent_id).in_(parent_ids),
        Conversation.owner_id == owner_id,
        col(Conversation.listed),
    )
    found: dict[str, list[str]] = {}
    for parent_id, child_id in session.exec(statement.order_by(col(Conversation.created_at))).all():
        found.setdefault(str(parent_id), []).append(child_id)
    return found


def _adopt(
    session: Session, conversation_id: str, sandbox: Sandbox, owner_id: str, *, listed: bool
) -> Conversation | None:
    # Two webhooks may bring the same news at the same time: the second finds what the first has made.
    with contextlib.suppress(IntegrityError), session.begin_nested():
        session.add(
            Conversation(
                id=conversation_id,
                owner_id=owner_id,
                sandbox_id=sandbox.id,
                title=default_title(conversation_id),
                listed=listed,
            )
        )
    return find(session, conversation_id, lock=True)


def _with_sandbox() -> Any:
    return select(Conversation, Sandbox).join(Sandbox, col(Sandbox.id) == col(Conversation.sandbox_id))


def _conditions(owner_id: str, which: ConversationFilter) -> list[ColumnElement[bool]]:
    created, updated = col(Conversation.created_at), col(Conversation.updated_at)
    optional: list[tuple[Any, Callable[[Any], Any]]] = [
        (
            which.title_contains,
            lambda text: func.lower(Conversation.title).like(func.lower(_containing(text)), escape="/"),
        ),
        (which.created_from, lambda time: created >= time),
        (which.created_before, lambda time: created < time),
        (which.updated_from, lambda time: updated >= time),
        (which.updated_before, lambda time: updated < time),
        (which.sandbox_id, lambda sandbox_id: col(Conversation.sandbox_id) == sandbox_id),
    ]
    conditions = [condition(value) for value, condition in optional if value is not None]
    if not which.with_sub_conversations:
        conditions.append(col(Conversation.parent_id).is_(None))
    return [col(Conversation.owner_id) == owner_id, col(Conversation.listed), *conditions]


def _containing(text: str) -> str:
    # The database lowers both sides: SQLite knows the capitals of ASCII alone, and must not be half right.
    for special in "/%_":
        text = text.replace(special, "/" + special)
    return f"%{text}%"
