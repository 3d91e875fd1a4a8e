"""User accounts."""

from sqlmodel import Session, col, select

from shared.errors import Conflict, Invalid, NotFound
from shared.models import Role, User


def create_user(session: Session, name: str, role: Role = Role.USER) -> User:
    """Add a user.

    Raises:
        Conflict: the name belongs to another user.
    """
    if find_user(session, name) is not None:
        raise Conflict(f"there is a user named {name!r} already")
    user = User(name=name, role=role)
    session.add(user)
    session.flush()
    return user


def create_first_or_next(session: Session, name: str) -> User:
    """Add a user, who is an operator if there is no other user.

    Raises:
        Conflict: the name belongs to another user.
    """
    return create_user(session, name, Role.USER if has_users(session) else Role.ADMIN)


def check_name(name: str) -> None:
    """Check the name of a new user, or of a key.

    Raises:
        Invalid: it is malformed.
    """
    if not 1 <= len(name) <= 100 or not name.isprintable() or name != name.strip():
        raise Invalid(f"invalid name {name[:100]!r}: use 1 to 100 printable characters, without spaces around them")


def has_users(session: Session) -> bool:
    return session.exec(select(User.id).limit(1)).first() is not None


def find_user(session: Session, name: str) -> User | None:
    return session.exec(select(User).where(User.name == name)).one_or_none()


def get_user(session: Session, name: str) -> User:
    """The user with that name.

    Raises:
        NotFound: no user has that name.
    """
    user = find_user(session, name)
    if user is None:
        raise NotFound("user", name, by="name")
    return user


def list_users(session: Session) -> list[User]:
    """All users, oldest first."""
    return list(session.exec(select(User).order_by(col(User.created_at), col(User.id))).all())
