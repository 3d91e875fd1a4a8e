"""The messages: each job is a type that carries ids only (law 1: it hurries a wish that is already in a row)."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Job:
    """Something to hurry. `subject` is the id of the row that holds the wish."""

    task: ClassVar[str]
    # Whether somebody waits for it.
    is_urgent: ClassVar[bool] = True
    subject: str
    # Empty: the row has no node yet, and only the sweep can help it.
    node_id: str | None


class StartSandbox(Job):
    """A new sandbox."""

    task = "sandboxes.start"


class WarmSandbox(Job):
    """A sandbox that is to wait for an owner."""

    task = "sandboxes.warm"
    is_urgent = False


class PauseSandbox(Job):
    """A sandbox to be frozen."""

    task = "sandboxes.pause"


class StopSandbox(Job):
    """A sandbox whose memory is to be freed."""

    task = "sandboxes.stop"


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


class CancelStart(Job):
    """A start task to be ended."""

    task = "conversations.cancel"


class DeleteConversation(Job):
    """A conversation to be forgotten by its sandbox."""

    task = "conversations.delete"


class DeliverMessages(Job):
    """A conversation to be told what was said meanwhile."""

    task = "conversations.deliver"


class RefreshConversation(Job):
    """A conversation whose title or spending a worker must look after."""

    task = "conversations.refresh"


JOBS: tuple[type[Job], ...] = (
    StartSandbox,
    WarmSandbox,
    PauseSandbox,
    StopSandbox,
    ResumeSandbox,
    DeleteSandbox,
    CheckSandbox,
    StartConversation,
    CancelStart,
    DeleteConversation,
    DeliverMessages,
    RefreshConversation,
)


def queue_of(job: Job) -> str:
    """The queue that a job goes to; it has a node."""
    return queues_of(str(job.node_id))[0 if job.is_urgent else 1]


def queues_of(node_id: str) -> list[str]:
    """The queues that a node's worker listens on: what somebody waits for, and what nobody does."""
    return [f"node.{node_id}", f"pool.{node_id}"]
