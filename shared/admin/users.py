"""Users and the metadata of their keys, for operators. No key itself is read."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import and_, func, true
from sqlmodel import Session, col, select

from shared.changes import recorder as change_recorder
from shared.changes.recorder import Usage
from shared.models import ApiKey, Sandbox, User
from shared.sql.pagination import Order, Page, read_page
from shared.states import Desired
from shared.users import accounts, api_keys

BY_NAME = Order(col(User.name), col(User.id))
# A user has at most a hundred keys in force, and any number of old ones.
MAX_KEYS = 200


class ListedUser(NamedTuple):
    """A user, with the number of keys in force, the last use of any key, and the number of sandboxes not deleted."""

    user: User
    keys: int
    last_used_at: datetime | None
    sandboxes: int
    stored: Usage


def search_users(session: Session, page_id: str | None, limit: int) -> Page[ListedUser]:
    """A page of all users, by name.

    Raises:
        Invalid: the page id is not from this list.
    """
    page = read_page(session, select(User), BY_NAME, page_id, limit)
    return Page(_describe(session, page.items), page.next_page_id)


def read_user(session: Session, name: str) -> tuple[ListedUser, Sequence[ApiKey]]:
    """The user of that name, with the user's newest keys.

    Raises:
        NotFound: no user has that name.
    """
    user = accounts.get_user(session, name)
    keys = select(ApiKey).where(ApiKey.user_id == user.id).order_by(col(ApiKey.created_at).desc(), col(ApiKey.id))
    return _describe(session, [user])[0], session.exec(keys.limit(MAX_KEYS)).all()


def _describe(session: Session, users: Sequence[User]) -> list[ListedUser]:
    ids = [user.id for user in users]
    valid, alive = and_(*api_keys.is_in_force()), col(Sandbox.desired) != Desired.DELETED
    counted, last_use = func.count().filter(valid), func.max(ApiKey.last_used_at)
    keys = _by_user(session, col(ApiKey.user_id), counted, last_use, ids, true())
    sandboxes = _by_user(session, col(Sandbox.owner_id), func.count(), func.count(), ids, alive)
    return [
        ListedUser(
            user,
            *keys.get(user.id, (0, None)),
            sandboxes.get(user.id, (0, 0))[0],
            change_recorder.read_usage(session, user.id),
        )
        for user in users
    ]


def _by_user(
    session: Session, owner: Any, one: Any, other: Any, ids: Sequence[str], where: Any
) -> dict[str, tuple[Any, Any]]:
    counted = select(owner, one, other).where(owner.in_(ids), where).group_by(owner)
    return {owner_id: (first, second) for owner_id, first, second in session.exec(counted).all()}
