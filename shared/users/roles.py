"""The admin role: its users may view and change the sandboxes of all users."""

from sqlmodel import Session, col, select

from shared.errors import Conflict
from shared.models import Role, User
from shared.sql.statements import locked
from shared.users import accounts, audit
from shared.users.audit import Actor


def is_admin(session: Session, user_id: str) -> bool:
    """Whether the user is an operator now."""
    return session.exec(select(User.role).where(User.id == user_id)).first() == Role.ADMIN


def grant_admin(session: Session, name: str, actor: Actor | None = None) -> bool:
    """Make the user of that name an operator.

    Returns:
        Whether the user was not an operator before.

    Raises:
        NotFound: no user has that name.
    """
    return _set_role(session, accounts.get_user(session, name), Role.ADMIN, actor)


def revoke_admin(session: Session, name: str, actor: Actor | None = None) -> bool:
    """Remove the admin role from the user of that name.

    Returns:
        Whether the user was an operator before.

    Raises:
        NotFound: no user has that name.
        Conflict: the user is the last operator.
    """
    # All operators are locked, in the order of their ids: of two concurrent calls, the second sees the first's change.
    admins = select(User).where(User.role == Role.ADMIN).order_by(col(User.id))
    names = [user.name for user in session.exec(locked(admins, key_share=True)).all()]
    if names == [name]:
        raise Conflict(f"{name} is the last admin: make another user one first (`users grant-admin`)")
    return _set_role(session, accounts.get_user(session, name), Role.USER, actor)


def _set_role(session: Session, user: User, role: Role, actor: Actor | None) -> bool:
    if user.role == role:
        return False
    user.role = role
    session.add(user)
    audit.record(session, actor, "grant-admin" if role == Role.ADMIN else "take-admin", user.name)
    return True
