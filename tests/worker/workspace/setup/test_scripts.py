"""A project's own scripts: its setup script, and its check as a git hook."""

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shared.redaction import redacting
from shared.users.secrets import MAX_VALUE_BYTES
from tests.waiting import eventually
from tests.worker.workspace.setup.shells import FAILING, LocalShell
from worker.workspace.failures import GitHooksFailed, SetupScriptFailed
from worker.workspace.setup import MAX_TAIL_LENGTH, install_git_hooks, run_setup_script

START = "89abcdef0123456789abcdef01234567"
# In a setup script: kills the shell that runs it, and then itself.
STOP_ALL = "{ kill -9 $(cut -d ' ' -f 4 /proc/$PPID/stat); kill -9 0; }"


def test_setup_script_runs_in_the_projects_folder(shell: LocalShell, checkout: Path) -> None:
    (checkout / ".openhands" / "setup.sh").write_text("[[ -n $BASH_VERSION ]] && pwd > where.txt\n")
    run_setup_script(shell, str(checkout), start_id=START)
    assert (checkout / "where.txt").read_text().strip() == str(checkout)


def test_defect_34_project_without_a_setup_script_runs_nothing(shell: LocalShell, checkout: Path) -> None:
    before = sorted(checkout.rglob("*"))
    run_setup_script(shell, str(checkout), start_id=START)
    assert shell.outputs[-1] == ""
    assert sorted(checkout.rglob("*")) == before
    assert list((shell.home / "tmp").iterdir()) == []


def test_defect_34_failed_setup_script_is_reported_with_the_end_of_its_output(
    shell: LocalShell, checkout: Path
) -> None:
    script = "seq 9999\necho key=hunter2 >&2\nexit 7\n"
    (checkout / ".openhands" / "setup.sh").write_text(script)
    with pytest.raises(SetupScriptFailed, match="ended with 7") as failure:
        run_setup_script(shell, str(checkout), start_id=START, redact=lambda text: text.replace("hunter2", "***"))
    assert failure.value.exit_code == 7
    assert failure.value.tail.endswith("9999\nkey=***")
    assert len(str(failure.value)) < 5000
    assert not list((shell.home / "tmp").iterdir())


@pytest.mark.parametrize("length", [40, MAX_VALUE_BYTES])
def test_no_part_of_a_secret_is_shown(shell: LocalShell, checkout: Path, length: int) -> None:
    """The end of the output that is shown may begin within a secret."""
    secret = ("0123456789" * MAX_VALUE_BYTES)[:length]
    (checkout / "key").write_text(secret)
    (checkout / ".openhands" / "setup.sh").write_text(f"cat key\necho {'x' * (MAX_TAIL_LENGTH - 30)}\nexit 7\n")
    with pytest.raises(SetupScriptFailed) as failure:
        run_setup_script(shell, str(checkout), start_id=START, redact=redacting([secret]))
    assert failure.value.tail.endswith("xxx")
    assert not set(secret) & set(failure.value.tail)


def test_repeat_has_the_result_of_the_first_run(shell: LocalShell, checkout: Path) -> None:
    (checkout / ".openhands" / "setup.sh").write_text("echo run >> runs.txt\necho the reason\nexit 7\n")
    for _ in range(2):
        with pytest.raises(SetupScriptFailed, match="ended with 7") as failure:
            run_setup_script(shell, str(checkout), start_id=START)
        assert failure.value.tail == "the reason"
    assert (checkout / "runs.txt").read_text() == "run\n"


def test_second_worker_waits_for_the_run_of_a_dead_one(shell: LocalShell, checkout: Path) -> None:
    script = "echo begun >> runs.txt\nuntil [ -e go ]; do sleep 0.01; done\necho ended >> runs.txt\n"
    (checkout / ".openhands" / "setup.sh").write_text(script)
    runs = checkout / "runs.txt"
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run_setup_script, shell, str(checkout), start_id=START)
        eventually(runs.exists)
        second = pool.submit(run_setup_script, shell, str(checkout), start_id=START)
        eventually(lambda: has_waiter(shell.home / f".local/state/agent-workspace/setup-{START}.lock"))
        (checkout / "go").touch()
        first.result(10)
        second.result(10)
    assert runs.read_text() == "begun\nended\n"


def test_run_that_was_interrupted_is_repeated(shell: LocalShell, checkout: Path) -> None:
    """The whole sandbox was stopped during the run."""
    (checkout / ".openhands" / "setup.sh").write_text(f"echo run >> runs.txt\n[ -e go ] || {STOP_ALL}\n")
    with pytest.raises(SetupScriptFailed):
        run_setup_script(shell, str(checkout), start_id=START)
    (checkout / "go").touch()
    run_setup_script(shell, str(checkout), start_id=START)
    assert (checkout / "runs.txt").read_text() == "run\nrun\n"


def test_script_runs_for_each_start(shell: LocalShell, checkout: Path) -> None:
    (checkout / ".openhands" / "setup.sh").write_text("echo run >> runs.txt\n")
    run_setup_script(shell, str(checkout), start_id=START)
    run_setup_script(shell, str(checkout), start_id=START[::-1])
    assert (checkout / "runs.txt").read_text() == "run\nrun\n"


def test_setup_script_that_exceeds_its_timeout_is_ended(shell: LocalShell, checkout: Path) -> None:
    (checkout / ".openhands" / "setup.sh").write_text("echo begun\nread line || true\nexec sleep 60\n")
    with pytest.raises(SetupScriptFailed, match=r"did not end within 0\.2 s"):
        run_setup_script(shell, str(checkout), start_id=START, seconds=0.2)


@pytest.mark.parametrize("script", ["kill -9 $$", "sh -c 'kill -9 $$'"], ids=["script", "command"])
def test_setup_script_that_is_killed_has_not_exceeded_its_timeout(
    shell: LocalShell, checkout: Path, script: str
) -> None:
    """As the kernel does if the sandbox has no memory left."""
    (checkout / ".openhands" / "setup.sh").write_text(f"echo begun\n{script}\n")
    with pytest.raises(SetupScriptFailed, match="ended with 137: begun"):
        run_setup_script(shell, str(checkout), start_id=START, seconds=60)


def test_background_process_of_the_setup_script_does_not_block_it(shell: LocalShell, checkout: Path) -> None:
    (checkout / ".openhands" / "setup.sh").write_text("sleep 60 & echo $! > service.pid\n")
    run_setup_script(shell, str(checkout), start_id=START, seconds=10)
    service = int((checkout / "service.pid").read_text())
    # The shell prints the number of a process that may still be a copy of the shell.
    assert eventually(lambda: "sleep" in Path(f"/proc/{service}/cmdline").read_text())
    os.kill(service, signal.SIGKILL)


def has_waiter(lock: Path) -> bool:
    """Whether a process waits for that lock."""
    waiters = (line for line in Path("/proc/locks").read_text().splitlines() if "->" in line)
    return any(f":{lock.stat().st_ino} " in line for line in waiters)


def commit(shell: LocalShell, checkout: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(shell.home)}
    command = ["git", "commit", "--allow-empty", "--message", "a change"]
    return subprocess.run(command, cwd=checkout, env=environment, text=True, capture_output=True, check=False)


def test_defect_35_check_of_the_project_becomes_a_hook(shell: LocalShell, checkout: Path) -> None:
    (checkout / ".openhands" / "pre-commit.sh").write_text(FAILING)
    install_git_hooks(shell, str(checkout))
    refused = commit(shell, checkout)
    assert refused.returncode != 0
    assert "no commit today" in refused.stderr


def test_defect_35_existing_hook_runs_after_the_check_even_if_installed_twice(
    shell: LocalShell, checkout: Path
) -> None:
    (checkout / ".openhands" / "pre-commit.sh").write_text("echo project >> order.txt\n")
    hook = checkout / ".git" / "hooks" / "pre-commit"
    hook.write_text("#!/bin/sh\necho former >> order.txt\n")
    hook.chmod(0o755)
    install_git_hooks(shell, str(checkout))
    install_git_hooks(shell, str(checkout))
    assert commit(shell, checkout).returncode == 0
    assert (checkout / "order.txt").read_text() == "project\nformer\n"


# A hook that runs the one in whose place it was installed, and refuses to be run by that: as pre-commit's.
TOOL = """\
#!/bin/sh
[ -z "$RUNS_FORMER" ] || { echo "installed in migration mode" >&2; exit 1; }
if [ -x "${0%/*}/pre-commit.legacy" ]; then RUNS_FORMER=1 "${0%/*}/pre-commit.legacy" || exit; fi
echo tool >> order.txt
"""


def install_tool(checkout: Path, python: str = "python") -> None:
    """Install the hook of the tool as `pre-commit install` does, which names its interpreter."""
    hook = checkout / ".git" / "hooks" / "pre-commit"
    if hook.exists() and not hook.read_text().startswith(TOOL):
        hook.rename(hook.with_name("pre-commit.legacy"))
    hook.write_text(f"{TOOL}# {python}\n")
    hook.chmod(0o755)


@pytest.mark.parametrize("starts", ["start tool", "start tool start", "tool start tool", "tool start tool start"])
def test_hook_and_the_hook_of_a_tool_that_is_installed_again_run_each_other_once(
    shell: LocalShell, checkout: Path, starts: str
) -> None:
    """A setup script, or an agent, may run `pre-commit install` between two starts in the same clone."""
    (checkout / ".openhands" / "pre-commit.sh").write_text("echo project >> order.txt\n")
    for number, step in enumerate(starts.split()):
        if step == "tool":
            install_tool(checkout, f"/tmp/environment-{number}/bin/python")
        else:
            install_git_hooks(shell, str(checkout))
    committed = commit(shell, checkout)
    assert committed.returncode == 0, committed.stderr
    assert (checkout / "order.txt").read_text() == "project\ntool\n"


def test_project_without_a_check_gets_no_hook(shell: LocalShell, checkout: Path) -> None:
    install_git_hooks(shell, str(checkout))
    assert not (checkout / ".git" / "hooks" / "pre-commit").exists()


def test_hook_that_cannot_be_installed_is_an_error(shell: LocalShell, sandbox: Path) -> None:
    folder = sandbox / "plain"
    (folder / ".openhands").mkdir(parents=True)
    (folder / ".openhands" / "pre-commit.sh").write_text("true\n")
    with pytest.raises(GitHooksFailed, match="not a git repository"):
        install_git_hooks(shell, str(folder))
