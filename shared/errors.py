"""Errors as facts, without HTTP; `api.errors.handlers` alone gives them a status.

WorkspaceError
├── Unauthenticated      no key, or a wrong one
├── Forbidden            a key that is good, for something else
├── NotFound             no such row, or not the caller's
├── Gone                 it was there, and is not any more
├── Invalid              the request contradicts itself or names what can't be
├── Conflict             the request contradicts what is stored
├── TooLarge             what is asked for is more than one answer holds
├── Unavailable          what would have to answer is out of order
├── QuotaExceeded        the user has as much as they may have
├── Cancelled            what is being done is no longer wished
├── IllegalMove          a status change the table of moves does not have
└── LeaseLost            another worker owns the row now: stop and touch nothing
"""


class WorkspaceError(Exception):
    """The root of the tree; `str(error)` is safe to show to a caller."""


class Unauthenticated(WorkspaceError):
    """The request carries no key, or one that is unknown, revoked or expired."""


class Forbidden(WorkspaceError):
    """The caller is known, and may not do this."""


class NotFound(WorkspaceError):
    """There is no such row, or it belongs to somebody else: the two look the same from outside."""

    def __init__(self, kind: str, identifier: str, *, by: str = "id") -> None:
        super().__init__(f"no {kind} with {by} {identifier[:80]!r}")


class Gone(WorkspaceError):
    """What is asked for was there, and is not any more."""


class Invalid(WorkspaceError):
    """The request is well-formed but can't mean anything."""


class Conflict(WorkspaceError):
    """The request can't be reconciled with what is stored."""


class TooLarge(WorkspaceError):
    """What is asked for is more than one answer holds."""


class Unavailable(WorkspaceError):
    """What would have to answer is out of order, until somebody does something about it."""


class QuotaExceeded(WorkspaceError):
    """The user has as much of something as they may have; `retry_seconds` is when to ask again."""

    def __init__(self, quota: str, limit: int, advice: str, retry_seconds: int) -> None:
        super().__init__(f"the quota of {limit} {quota} is used up: {advice}")
        self.retry_seconds = retry_seconds


class Cancelled(WorkspaceError):
    """What is being done is no longer wished; nothing was written."""


class IllegalMove(WorkspaceError):
    """A status change the table of moves does not have: a defect of ours, never of a caller."""


class LeaseLost(WorkspaceError):
    """The fence has moved on: the row belongs to another worker."""
