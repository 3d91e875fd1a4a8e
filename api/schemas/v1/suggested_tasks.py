"""Tasks that git providers suggest, and the agent's first message for each."""

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from api.schemas.v1.fields import check_repository
from shared.users.settings import Provider


class TaskType(StrEnum):
    """The kind of a suggested task (wire contract, appendix B)."""

    MERGE_CONFLICTS = "MERGE_CONFLICTS"
    FAILING_CHECKS = "FAILING_CHECKS"
    UNRESOLVED_COMMENTS = "UNRESOLVED_COMMENTS"
    OPEN_ISSUE = "OPEN_ISSUE"
    OPEN_PR = "OPEN_PR"


class SuggestedTask(BaseModel):
    """V1's SuggestedTask. `issue_number` is the number of the issue or the pull request."""

    git_provider: Provider
    task_type: TaskType
    repo: Annotated[str, Field(max_length=500), AfterValidator(check_repository)]
    issue_number: int = Field(ge=1, le=2**31 - 1)
    title: str = Field(max_length=1000)


AIMS = {
    TaskType.MERGE_CONFLICTS: (
        "Pull request #{number} can't be merged: its branch conflicts with the branch it is meant for. Merge that "
        "branch into it, resolve each conflict so that both sides' intent survives, run the tests and push."
    ),
    TaskType.FAILING_CHECKS: (
        "Checks fail on pull request #{number}. Read their logs, find the cause, correct it on the pull request's "
        "branch and push; don't weaken a check to make it pass."
    ),
    TaskType.UNRESOLVED_COMMENTS: (
        "Pull request #{number} has review comments without a response. Go through them one by one, make the "
        "change each asks for or say why not, and push to the pull request's branch."
    ),
    TaskType.OPEN_ISSUE: (
        "Issue #{number} is open. Read it and the code it is about, reproduce it if it is a defect, make the change "
        "with a test on a new branch, and open a pull request that refers to the issue."
    ),
    TaskType.OPEN_PR: (
        "Pull request #{number} is open. Find out what is still missing, complete it on its branch, run the tests, "
        "push, and sum up what you did in a comment."
    ),
}


def prompt_for(task: SuggestedTask) -> str:
    """Return the first message to the agent for a suggested task."""
    aim = AIMS[task.task_type].format(number=task.issue_number)
    return (
        f"You work on the repository {task.repo} at {task.git_provider}, which is in your working directory.\n\n"
        f"{aim}\n\nIts title: {task.title}\n\nA token for the provider is in your environment."
    )
