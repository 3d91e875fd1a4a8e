"""The setup of a conversation's project folder through the agent server's shell: clone, setup script, git hooks.

Every function is safe to repeat: a complete result is kept, an incomplete one is removed and built again.
"""

from shared.redaction import Redact
from worker.workspace.clone import Check, clone_first
from worker.workspace.project import (
    GRACE_SECONDS,
    MAX_TAIL_LENGTH,
    GitHooksFailed,
    Project,
    ProjectContents,
    SetupScriptFailed,
    WorkspaceSetupFailed,
    is_timeout,
    read_contents,
    run,
    tail,
)
from worker.workspace.shell_scripts import (
    CONFIGURE,
    HOOKS,
    INIT,
    LIST_SCRIPTS,
    PRE_COMMIT,
    SETUP,
    Shell,
    with_variables,
)

SETUP_SCRIPT_SECONDS = 600.0


def prepare_repository(shell: Shell, project: Project, before_switch: Check = lambda _: None) -> ProjectContents:
    """Make `project.folder` a git repository, cloned or new.

    If the request names no branch, a clone gets a new one, `openhands-workspace-<8 characters of the conversation id>`.
    An existing clone is kept; the request's branch is checked out in it, unless it has uncommitted changes.

    Args:
        before_switch: called with the branch that a clone is on before another is checked out; raises to refuse that.

    Returns:
        The project's contents. The scripts of an existing clone are not listed.

    Raises:
        WorkspaceSetupFailed, RepositoryCloneFailed: see `worker.workspace.project`.
        AgentServerError: the agent server does not respond, or rejects a command.
    """
    if project.repository is not None:
        failure = WorkspaceSetupFailed("the working folder can't be created")
        run(shell, _configure_script(project), failure, project.redact)
        return clone_first(shell, project, [project.repository, *project.alternatives], before_switch)
    failure = WorkspaceSetupFailed("the working folder can't be initialized as a git repository")
    command = _configure_script(project) + INIT + with_variables(LIST_SCRIPTS, project=project.folder)
    return read_contents(run(shell, command, failure, project.redact))


def run_setup_script(
    shell: Shell,
    project_dir: str,
    *,
    start_id: str,
    seconds: float = SETUP_SCRIPT_SECONDS,
    redact: Redact = lambda text: text,
) -> None:
    """Run the project's .openhands/setup.sh with bash, from the project's folder, if there is one.

    Args:
        start_id: an idempotency key: a repeated call waits for the end of the first, and has the same result.

    Raises:
        SetupScriptFailed: the script exited with an error, or not within `seconds`.
    """
    values = {"folder": project_dir, "start": start_id, "seconds": f"{seconds:g}", "max_length": str(MAX_TAIL_LENGTH)}
    command = with_variables(SETUP, **values)
    result = shell.run_command(command, timeout=seconds + GRACE_SECONDS)
    if result.exit_code == 0:
        return
    problem = f"did not end within {seconds:g} s" if is_timeout(result) else f"ended with {result.exit_code}"
    raise SetupScriptFailed(problem, result.exit_code, tail(redact(result.output)))


def install_git_hooks(shell: Shell, project_dir: str, *, redact: Redact = lambda text: text) -> None:
    """Install the project's .openhands/pre-commit.sh as a git hook, if it has one; an existing hook runs after it.

    Raises:
        GitHooksFailed: the hook could not be written.
    """
    command = with_variables(HOOKS, folder=project_dir, hook=PRE_COMMIT)
    run(shell, command, GitHooksFailed("the pre-commit hook could not be installed"), redact)


def _configure_script(project: Project) -> str:
    author, address = project.author or "", project.address or ""
    return with_variables(CONFIGURE, folder=project.working_dir, author=author, address=address)
