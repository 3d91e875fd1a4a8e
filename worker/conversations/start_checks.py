"""The checks whether a conversation can start in its sandbox."""

from shared.models import Sandbox
from shared.states import Desired, Reason, Status


class StartFailed(Exception):
    """The start can't succeed."""

    def __init__(self, reason: Reason, detail: str) -> None:
        """Take the reason, for machines, and the detail, for people."""
        super().__init__(detail)
        self.reason = reason


def check_sandbox(sandbox: Sandbox | None) -> Sandbox:
    """The sandbox of a start, if it runs or starts.

    Raises:
        StartFailed: the sandbox does neither.
    """
    if sandbox is not None and sandbox.wish_reason == Reason.ALREADY_USED:
        detail = "the warm sandbox that was claimed for it is in use already: start the conversation again"
        raise StartFailed(Reason.SANDBOX_FAILED, f"{sandbox.wish_reason}: {detail}")
    if sandbox is None or sandbox.desired == Desired.DELETED:
        raise StartFailed(Reason.SANDBOX_DELETED, "the sandbox was deleted before the conversation began")
    is_observed = sandbox.generation == sandbox.observed_generation
    is_lost = sandbox.reason == Reason.NODE_LOST  # its return can't be awaited
    if (is_observed or is_lost) and sandbox.status == Status.ERROR:
        raise StartFailed(Reason.SANDBOX_FAILED, f"{sandbox.reason}: {sandbox.detail}")
    if Desired(sandbox.desired).is_paused or (is_observed and sandbox.status == Status.PAUSED):
        raise StartFailed(Reason.SANDBOX_PAUSED, "the sandbox was paused before the conversation began")
    return sandbox
