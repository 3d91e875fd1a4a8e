"""Lists of conversations: filtered, sorted, counted."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import accumulate
from typing import Any

from sqlalchemy import and_, bindparam, join, select
from sqlalchemy.orm import aliased
from sqlmodel import Session, col

from shared.conversations.title_search import Substring, contains
from shared.db.database import Database
from shared.db.json_rows import LINE_END, TextList, lines
from shared.models import Conversation, Sandbox, StartTask
from shared.models.columns import UtcDateTime
from shared.models.conversations import UNFINISHED
from shared.sql.pagination import MAX_PAGE_BYTES, Order, Page, measure

SORT_ORDERS = {
    f"{name.upper()}{suffix}": Order(getattr(Conversation, name), col(Conversation.id), descending=bool(suffix))
    for name in ("created_at", "updated_at", "title")
    for suffix in ("", "_DESC")
}
# The maximum number of start tasks that `list_starting` reads.
MAX_STARTING = 1000
# The columns that are shown of a conversation and of its sandbox.
SHOWN = (
    *("id", "owner_id", "sandbox_id", "parent_id", "title", "public", "created_at", "updated_at", "working_dir"),
    *("selected_repository", "selected_branch", "git_provider", "trigger", "pr_number", "llm_model", "agent_kind"),
    *("execution_status", "execution_reason", "execution_detail", "metrics", "max_budget", "tags"),
)
SHOWN_OF_SANDBOX = ("status", "desired", "exposed_urls", "session_key")


@dataclass(frozen=True)
class ConversationFilter:
    """A selection of the owner's conversations; a field that is None does not filter."""

    title_contains: str | None = None
    created_from: datetime | None = None
    created_before: datetime | None = None
    updated_from: datetime | None = None
    updated_before: datetime | None = None
    sandbox_id: str | None = None
    repository: str | None = None
    trigger: str | None = None
    with_sub_conversations: bool = False


def list_starting(session: Session, owner_id: str) -> Sequence[StartTask]:
    """The owner's unfinished, uncancelled start tasks: the newest, up to `MAX_PAGE_BYTES` together, at least one."""
    own = (col(StartTask.owner_id) == owner_id, col(StartTask.cancelled_at).is_(None), *UNFINISHED)
    sizes = select(col(StartTask.id), measure(session, col(StartTask.request))).where(*own)
    rows = session.execute(sizes.order_by(col(StartTask.created_at).desc()).limit(MAX_STARTING)).all()
    totals = accumulate(size for _, size in rows)
    ids = [row_id for (row_id, _), total in zip(rows, totals, strict=True) if total <= MAX_PAGE_BYTES]
    return (
        session.execute(select(StartTask).where(col(StartTask.id).in_(ids or [row[0] for row in rows[:1]])))
        .scalars()
        .all()
    )


def search(
    database: Database,
    owner_id: str,
    selection: ConversationFilter,
    *,
    sort_order: str,
    page_id: str | None,
    limit: int,
) -> Page[str]:
    """A page of the owner's conversations, each as a text for `read_text`.

    Raises:
        Invalid: this service did not issue the page id.
    """
    return _LIST.page(database, _values(owner_id, selection), SORT_ORDERS[sort_order], page_id, limit)


def count(database: Database, owner_id: str, selection: ConversationFilter) -> int:
    """The number of conversations that `search` lists with this filter."""
    return _LIST.count(database, _values(owner_id, selection))


def read_text(text: str) -> tuple[Conversation, Sandbox, list[str]]:
    """The conversation, its sandbox and the ids of its children. Both rows have the shown columns only."""
    *values, children = _LIST.read(text)
    conversation = Conversation(**dict(zip(SHOWN, values, strict=False)))
    of_sandbox = dict(zip(SHOWN_OF_SANDBOX, values[len(SHOWN) :], strict=True))
    sandbox = Sandbox(id=conversation.sandbox_id, **of_sandbox)
    return conversation, sandbox, children.split(LINE_END) if children else []


def _values(owner_id: str, selection: ConversationFilter) -> dict[str, Any]:
    return asdict(selection) | {
        "owner_id": owner_id,
        "parents_only": None if selection.with_sub_conversations else True,
    }


def _children() -> Any:
    """The ids of the sub-conversations, oldest first."""
    child: Any = aliased(Conversation)
    of_parent = and_(col(child.parent_id) == col(Conversation.id), col(child.owner_id) == col(Conversation.owner_id))
    listed = select(child.id).where(of_parent, col(child.listed)).order_by(col(child.created_at))
    ids = listed.correlate(Conversation).subquery()
    return select(lines(ids.c.id)).scalar_subquery()


def _time(name: str) -> Any:
    # The parameter needs a type of its own: it gets none from the column on its right, and SQLite would compare times
    # in different formats.
    return bindparam(name, type_=UtcDateTime())


_CREATED, _UPDATED = col(Conversation.created_at), col(Conversation.updated_at)
_LIST = TextList(
    columns=(
        *(getattr(Conversation, name) for name in SHOWN),
        *(getattr(Sandbox, name) for name in SHOWN_OF_SANDBOX),
        _children(),
    ),
    model=Conversation,
    shown_from=join(Conversation, Sandbox, col(Sandbox.id) == col(Conversation.sandbox_id)),
    always=(col(Conversation.owner_id) == bindparam("owner_id"), col(Conversation.listed)),
    filters={
        "title_contains": contains(Conversation.title, bindparam("title_contains", type_=Substring())),
        "created_from": _time("created_from") <= _CREATED,
        "created_before": _time("created_before") > _CREATED,
        "updated_from": _time("updated_from") <= _UPDATED,
        "updated_before": _time("updated_before") > _UPDATED,
        "sandbox_id": col(Conversation.sandbox_id) == bindparam("sandbox_id"),
        "repository": col(Conversation.selected_repository) == bindparam("repository"),
        "trigger": col(Conversation.trigger) == bindparam("trigger"),
        "parents_only": col(Conversation.parent_id).is_(None),
    },
    selective=frozenset({"title_contains", "created_from", "created_before", "updated_from", "updated_before"}),
)
