"""A clone that conversations of one sandbox share: no checkout changes the branch of a conversation at work."""

from dataclasses import dataclass

from shared.conversations import shared_clones
from shared.models import StartTask
from worker.context import WorkerContext
from worker.workspace.setup import Project, RepositoryCloneFailed


@dataclass(frozen=True)
class SharedClone:
    """The clone that a start prepares."""

    context: WorkerContext
    task: StartTask
    project: Project

    def require_idle(self, head: str) -> None:
        """Refuse to check out another branch than `head` while another conversation is at work in the clone.

        Raises:
            RepositoryCloneFailed: another conversation is at work in the clone.
        """
        with self.context.database.reading() as session:
            other = shared_clones.find_at_work(session, self.task, self.project.folder)
        if other is not None:
            raise RepositoryCloneFailed(
                f"conversation {other} is at work in the clone, on {head}: wait for its end, ask for that branch, or "
                "start in another sandbox"
            )

    def record_branch(self) -> None:
        """Write the requested branch to the clone's other conversations, too: the clone is on it now.

        Raises:
            LeaseLost: another worker owns the task now; nothing was written.
        """
        repository = self.project.repository
        if repository is None or repository.branch is None or repository.keeps_branch:
            return
        with self.context.database.transaction() as session:
            shared_clones.set_branch(session, self.task, self.project.folder, repository.branch)
