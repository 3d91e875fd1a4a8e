"""The messages: each job is a type that carries ids only (law 1: it hurries a wish that is already in a row)."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Job:
    """Something to hurry. `subject` is the id of the row that holds the wish."""

    task: ClassVar[str]
    subject: str
    # Empty: the row has no node yet, and only the sweep can help it.
    node_id: str | None


class StartSandbox(Job):
    """A new sandbox."""

    task = "sandboxes.start"


class PauseSandbox(Job):
    """A sandbox to be frozen."""

    task = "sandboxes.pause"


class ResumeSandbox(Job):
    """A sandbox to run again."""

    task = "sandboxes.resume"


class DeleteSandbox(Job):
    """A sandbox to be removed."""

    task = "sandboxes.delete"


class CheckSandbox(Job):
    """A sandbox whose container changed, or whose last job was not heard of again."""

    task = "sandboxes.check"


class StartConversation(Job):
    """A start task to be walked on."""

    task = "conversations.start"


class RefreshConversation(Job):
    """A conversation whose title or spending a worker must look after."""

    task = "conversations.refresh"


JOBS: tuple[type[Job], ...] = (
    StartSandbox,
    PauseSandbox,
    ResumeSandbox,
    DeleteSandbox,
    CheckSandbox,
    StartConversation,
    RefreshConversation,
)


def queue_of(node_id: str) -> str:
    """The queue that a node's worker listens on."""
    return f"node.{node_id}"
