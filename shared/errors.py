"""The errors of this service, without HTTP: only `api.errors.handlers` maps them to a status.

WorkspaceError
├── Unauthenticated      no key, or an invalid one
├── Forbidden            a valid key without access to this
├── NotFound             no such row, or another user's
├── Gone                 it existed, and is deleted
├── Invalid              the request contradicts itself, or has an invalid value
├── Conflict             the request contradicts what is stored
├── TooLarge             more than one response can hold
├── Unavailable          a dependency does not work
├── QuotaExceeded        the user has reached a limit
├── Cancelled            the desired state changed during the operation
├── IllegalTransition    a status change that the table of transitions does not have
└── LeaseLost            another worker owns the row: stop, and write nothing
"""


class WorkspaceError(Exception):
    """The root of the tree. `str(error)` is safe to show to a caller."""


class Unauthenticated(WorkspaceError):
    """The request has no key, or one that is unknown, revoked or expired."""


class Forbidden(WorkspaceError):
    """The caller is authenticated but not allowed to do this."""


class NotFound(WorkspaceError):
    """There is no such row, or another user owns it: callers cannot distinguish the two."""

    def __init__(self, kind: str, identifier: str, *, by: str = "id") -> None:
        super().__init__(f"no {kind} with {by} {identifier[:80]!r}")


class Gone(WorkspaceError):
    """The resource existed and was deleted."""


class Invalid(WorkspaceError):
    """The request is well-formed but its values are invalid."""


class Conflict(WorkspaceError):
    """The request contradicts what is stored."""


class TooLarge(WorkspaceError):
    """The requested data is larger than one response may be."""


class Unavailable(WorkspaceError):
    """A dependency does not work until an operator repairs it."""


class QuotaExceeded(WorkspaceError):
    """The user has reached a limit. `retry_seconds` is the delay before a retry."""

    def __init__(self, quota: str, limit: int, advice: str, retry_seconds: int) -> None:
        super().__init__(f"the quota of {limit} {quota} is used up: {advice}")
        self.retry_seconds = retry_seconds


class Cancelled(WorkspaceError):
    """The desired state changed during the operation; nothing was written."""


class IllegalTransition(WorkspaceError):
    """A status change that the table of transitions does not have: a bug in this service, never a caller's."""


class LeaseLost(WorkspaceError):
    """The fencing token has increased: another worker owns the row."""
