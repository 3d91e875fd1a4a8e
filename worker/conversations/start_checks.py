"""Whether a conversation can start in its sandbox."""

from shared.models import Sandbox
from shared.states import Desired, Reason, Status


class StartFailed(Exception):
    """The start can't succeed any more."""

    def __init__(self, reason: Reason, detail: str) -> None:
        """Say why, for machines and for people."""
        super().__init__(detail)
        self.reason = reason


def check_sandbox(sandbox: Sandbox | None) -> Sandbox:
    """The sandbox of a start, if it runs or is on its way to that.

    Raises:
        StartFailed: it is not.
    """
    if sandbox is not None and sandbox.wish_reason == Reason.ALREADY_USED:
        words = "its sandbox, of the warm pool, turned out to be in use already: start the conversation again"
        raise StartFailed(Reason.SANDBOX_FAILED, f"{sandbox.wish_reason}: {words}")
    if sandbox is None or sandbox.desired == Desired.DELETED:
        raise StartFailed(Reason.SANDBOX_DELETED, "the sandbox was deleted before the conversation began")
    settled = sandbox.generation == sandbox.observed_generation
    lost = sandbox.reason == Reason.NODE_LOST  # nobody knows for how long
    if (settled or lost) and sandbox.status == Status.ERROR:
        raise StartFailed(Reason.SANDBOX_FAILED, f"{sandbox.reason}: {sandbox.detail}")
    if Desired(sandbox.desired).is_paused or (settled and sandbox.status == Status.PAUSED):
        raise StartFailed(Reason.SANDBOX_PAUSED, "the sandbox was paused before the conversation began")
    return sandbox
