"""Checks whether work is due, in a session of a test."""

from functools import partial

from sqlmodel import Session

from shared.sql.due_checks import DueCheck, find_due
from shared.sql.statements import send


def is_due(session: Session, *checks: DueCheck) -> bool:
    """Whether any of the checks finds work, as the sweep would."""
    return bool(find_due(partial(send, session), {"work": checks}))
