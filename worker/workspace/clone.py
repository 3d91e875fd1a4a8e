"""The clone of a conversation's repository.

No token may remain in the sandbox, and the agent server stores the text of every command in a file. So a token is sent
as a file of its own, to a folder that only the sandbox's user can enter, in memory if the sandbox has /dev/shm. git
reads it there. The command that runs git removes it, with any exit code.
"""

import secrets
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from urllib.parse import quote

from shared.agent_server.responses import CommandResult
from shared.json_documents import clean_text
from shared.redaction import redacting
from worker.workspace.git_remotes import GitRepository, UnusableRemote
from worker.workspace.project import (
    GRACE_SECONDS,
    Project,
    ProjectContents,
    RepositoryCloneFailed,
    RepositoryUnavailable,
    WorkspaceSetupFailed,
    is_timeout,
    read_contents,
    run,
    tail,
)
from worker.workspace.shell_scripts import (
    CLONE,
    FIND_HEAD,
    HIDE,
    LIST_SCRIPTS,
    REMOTE,
    SWITCH,
    Shell,
    with_variables,
)

MAX_BRANCH_LENGTH = 500
Check = Callable[[str], None]


def clone_first(
    shell: Shell, project: Project, repositories: Sequence[GitRepository], before_switch: Check
) -> ProjectContents:
    """Clone the first of the repositories that is available; see `prepare_repository`."""
    failures = []
    for repository in repositories:
        try:
            return _clone(shell, project, repository, before_switch)
        except RepositoryUnavailable as failure:
            failures.append(failure)
    if len(failures) == 1:
        raise failures[0]
    tried = "\n".join(f"{each.provider}: {error}" for each, error in zip(repositories, failures, strict=True))
    raise RepositoryCloneFailed(f"no provider with a token has the repository; git_provider names one\n{tried}")


def _clone(shell: Shell, project: Project, repository: GitRepository, before_switch: Check) -> ProjectContents:
    try:
        url, credential = repository.url, repository.credential
    except UnusableRemote as error:
        raise RepositoryUnavailable(str(error)) from error
    branch = repository.branch
    head = _find_head(shell, project.folder, url, branch or "")
    if head is not None and (branch in (None, head) or repository.keeps_branch):
        return ProjectContents(branch=clean_text(head, MAX_BRANCH_LENGTH))
    if head is not None:
        before_switch(clean_text(head, MAX_BRANCH_LENGTH) or "no branch")
    private = _store_credential(shell, project, credential)
    if head is not None:
        script = _switch_script(project, repository, head, private)
        aim = f"checking out {branch} in the clone of {repository.name}"
        _run_git(shell, project, repository, script, aim, RepositoryCloneFailed)
        return ProjectContents(branch=branch)
    script = _clone_script(project, repository, url, private)
    result = _run_git(shell, project, repository, script, f"cloning {repository.name}", RepositoryUnavailable)
    return replace(read_contents(result), branch=branch)


def _run_git(
    shell: Shell,
    project: Project,
    repository: GitRepository,
    script: str,
    aim: str,
    failure: type[RepositoryCloneFailed],
) -> CommandResult:
    result = shell.run_command(script, timeout=project.clone_seconds + GRACE_SECONDS)
    if is_timeout(result):
        raise RepositoryCloneFailed(f"{aim} did not end within {project.clone_seconds:g} s")
    if result.exit_code != 0:
        hide_token = redacting([repository.token or "", quote(repository.token or "", safe="")])
        raise failure(f"{aim} failed: {tail(project.redact(hide_token(result.output)))}")
    return result


def _find_head(shell: Shell, folder: str, url: str, branch: str) -> str | None:
    """The branch, or the requested tag, that the clone is on; empty: neither; None: there is no clone.

    A clone gets its name only when it is complete.
    """
    result = shell.run_command(with_variables(FIND_HEAD, folder=folder, url=url, branch=branch))
    if result.exit_code == 0:
        mark, _, head = result.stdout.strip().partition("\n")
        return head.strip() if mark == "cloned" else None
    raise RepositoryUnavailable(f"{folder} exists and is not a clone of the repository")


def _store_credential(shell: Shell, project: Project, credential: str) -> str:
    """Create a private folder with the credential, and remove the folders of interrupted attempts."""
    prefix = f"aw-git-{project.mark}-"
    command = with_variables(HIDE, prefix=prefix, name=prefix + secrets.token_hex(4))
    command += shlex.join(["hide", *project.private_roots])
    failure = WorkspaceSetupFailed("no private folder could be created for the credential")
    folder = run(shell, command, failure, project.redact).stdout.strip()
    if credential:
        shell.upload(f"{folder}/credential", credential.encode())
    return folder


def _clone_script(project: Project, repository: GitRepository, url: str, private: str) -> str:
    parent, _, name = project.folder.rpartition("/")
    return with_variables(
        REMOTE + CLONE + LIST_SCRIPTS,
        private=private,
        url=url,
        project=project.folder,
        unfinished=f"{parent}/.{name}.clone-{project.mark}",
        attempt=secrets.token_hex(4),
        branch=repository.branch or "",
        new_branch=f"openhands-workspace-{project.mark[:8]}",
        depth="" if repository.full else "1",
        seconds=f"{project.clone_seconds:g}",
    )


def _switch_script(project: Project, repository: GitRepository, head: str, private: str) -> str:
    return with_variables(
        REMOTE + SWITCH,
        private=private,
        project=project.folder,
        head=head,
        branch=repository.branch or "",
        depth="" if repository.full else "1",
        seconds=f"{project.clone_seconds:g}",
    )
