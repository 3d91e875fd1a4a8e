"""Errors as facts, without HTTP; `api.errors` alone gives them a status.

WorkspaceError
├── Unauthenticated      no key, or a wrong one
├── NotFound             no such row, or not the caller's
├── Invalid              the request contradicts itself or names what can't be
├── Conflict             the request contradicts what is stored
├── QuotaExceeded        the user has as much as they may have
├── IllegalMove          a status change the table of moves does not have
└── LeaseLost            another worker owns the row now: stop and touch nothing
"""


class WorkspaceError(Exception):
    """The root of the tree; `str(error)` is safe to show to a caller."""


class Unauthenticated(WorkspaceError):
    """The request carries no key, or one that is unknown, revoked or expired."""


class NotFound(WorkspaceError):
    """There is no such row, or it belongs to somebody else: the two look the same from outside."""

    def __init__(self, kind: str, identifier: str) -> None:
        super().__init__(f"no {kind} with id {identifier[:80]!r}")


class Invalid(WorkspaceError):
    """The request is well-formed but can't mean anything."""


class Conflict(WorkspaceError):
    """The request can't be reconciled with what is stored."""


class QuotaExceeded(WorkspaceError):
    """The user has as much of something as they may have; `retry_seconds` is when to ask again."""

    def __init__(self, quota: str, limit: int, advice: str, retry_seconds: int) -> None:
        super().__init__(f"the quota of {limit} {quota} is used up: {advice}")
        self.retry_seconds = retry_seconds


class IllegalMove(WorkspaceError):
    """A status change the table of moves does not have: a defect of ours, never of a caller."""


class LeaseLost(WorkspaceError):
    """The fence has moved on: the row belongs to another worker."""
