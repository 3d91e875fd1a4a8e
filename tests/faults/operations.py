"""The operations that processes are killed in: what each begins with, what it does, and whose points are its own."""

from collections.abc import Callable
from dataclasses import dataclass

from shared.states import Status
from tests.faults.runner import Runner
from tests.services.engine import TINY_IMAGE

BROKEN_IMAGE = "agent-workspace/tiny:broken"


def nothing(_runner: Runner) -> str:
    """Some things are done to nothing."""
    return ""


@dataclass(frozen=True)
class Operation:
    """One thing that is asked for.

    Args:
        owns: the routes and jobs whose points belong to it.
        prepare: makes what it is done to, and names that.
    """

    owns: frozenset[str]
    act: Callable[[Runner, str], None]
    prepare: Callable[[Runner], str] = nothing

    def points(self, met: set[str]) -> set[str]:
        """Those of the points met that belong to it."""
        return {name for name in met if name.rsplit("/", 2)[0] in self.owns}


def running(runner: Runner) -> str:
    """A sandbox that runs."""
    sandbox_id = runner.client.start(TINY_IMAGE)
    assert sandbox_id is not None
    runner.await_status(sandbox_id, Status.RUNNING)
    return sandbox_id


def paused(runner: Runner) -> str:
    """A sandbox that is frozen."""
    sandbox_id = running(runner)
    runner.client.pause(sandbox_id)
    runner.await_status(sandbox_id, Status.PAUSED)
    return sandbox_id


OPERATIONS = {
    "start": Operation(
        frozenset({"POST /sandboxes", "sandboxes.start"}),
        lambda runner, _: _forget(runner.client.start(TINY_IMAGE)),
    ),
    "pause": Operation(
        frozenset({"POST /sandboxes/{sandbox_id}/pause", "sandboxes.pause"}),
        lambda runner, sandbox_id: runner.client.pause(sandbox_id),
        running,
    ),
    "resume": Operation(
        frozenset({"POST /sandboxes/{sandbox_id}/resume", "sandboxes.resume"}),
        lambda runner, sandbox_id: runner.client.resume(sandbox_id),
        paused,
    ),
    "delete": Operation(
        frozenset({"DELETE /sandboxes/{sandbox_id}", "sandboxes.delete"}),
        lambda runner, sandbox_id: runner.client.delete(sandbox_id),
        running,
    ),
    "failing-start": Operation(
        frozenset({"sandboxes.start"}),
        lambda runner, _: _forget(runner.client.start(BROKEN_IMAGE)),
    ),
    # The tiny image's agent server knows no conversations: it answers 404.
    "refused-conversation": Operation(
        frozenset({"POST /app-conversations", "conversations.start"}),
        lambda runner, _: _forget(runner.client.converse()),
    ),
    "background": Operation(
        frozenset({"heartbeat", "leases", "sweep", "resync", "events", "sandboxes.check"}),
        lambda runner, _: _forget(runner.client.start(TINY_IMAGE)),
    ),
}


def _forget(_answer: str | None) -> None:
    """What was answered is in the history."""
