"""Job messages. Each type carries ids only: the desired state is in the row already (law 1)."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Job:
    """A job message. `subject` is the id of the row to run."""

    task: ClassVar[str]
    # Whether a user waits for the job.
    is_urgent: ClassVar[bool] = True
    subject: str
    # None: the row has no node yet, and is left to the sweep.
    node_id: str | None


class StartSandbox(Job):
    task = "sandboxes.start"


class BootWarmSandbox(Job):
    task = "sandboxes.warm"
    is_urgent = False


class PauseSandbox(Job):
    """Pause a sandbox (memory kept)."""

    task = "sandboxes.pause"


class StopSandbox(Job):
    """Stop a sandbox (files kept)."""

    task = "sandboxes.stop"


class ResumeSandbox(Job):
    task = "sandboxes.resume"


class DeleteSandbox(Job):
    task = "sandboxes.delete"


class CheckSandbox(Job):
    """Reconcile a sandbox with drift, or one whose last job was lost."""

    task = "sandboxes.check"


class ReadLog(Job):
    """Read the log of a sandbox's container for a request that waits for it. A lost message is not sent again."""

    task = "sandboxes.read_log"


class StartConversation(Job):
    """Run a start task."""

    task = "conversations.start"


class CancelStart(Job):
    task = "conversations.cancel"


class DeleteConversation(Job):
    task = "conversations.delete"


class DeliverMessages(Job):
    task = "conversations.deliver"


class RefreshConversation(Job):
    """Refresh the title and the cost of a conversation."""

    task = "conversations.refresh"


def queue_of(job: Job) -> str:
    return queues_of(str(job.node_id))[0 if job.is_urgent else 1]


def queues_of(node_id: str) -> list[str]:
    """Return the queues that a node's worker consumes: first the urgent jobs, then those of the warm pool."""
    return [f"node.{node_id}", f"pool.{node_id}"]
