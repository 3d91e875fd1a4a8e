"""A project's folder without a clone: created, or left as it is."""

from pathlib import Path

import pytest

from tests.worker.workspace.setup.shells import LocalShell, project_of
from worker.workspace.failures import WorkspaceSetupFailed
from worker.workspace.setup import ProjectContents, prepare_repository


def test_folder_without_a_repository_becomes_one(shell: LocalShell, sandbox: Path) -> None:
    project = project_of(sandbox)
    prepare_repository(shell, project)
    assert (sandbox / "work dir" / ".git").is_dir()
    assert project.folder == str(sandbox / "work dir")


@pytest.mark.parametrize("scripts", [(), ("setup.sh",), ("pre-commit.sh",), ("setup.sh", "pre-commit.sh")])
def test_folder_reports_its_scripts(shell: LocalShell, sandbox: Path, scripts: tuple[str, ...]) -> None:
    project = project_of(sandbox)
    folder = Path(project.folder, ".openhands")
    folder.mkdir(parents=True)
    for script in scripts:
        (folder / script).write_text("true\n")
    assert prepare_repository(shell, project) == ProjectContents("setup.sh" in scripts, "pre-commit.sh" in scripts)


def test_existing_repository_is_kept(shell: LocalShell, sandbox: Path) -> None:
    prepare_repository(shell, project_of(sandbox))
    work = sandbox / "work dir"
    shell.git(work, "checkout", "--quiet", "-b", "mine")
    prepare_repository(shell, project_of(sandbox))
    assert shell.git(work, "symbolic-ref", "--short", "HEAD") == "mine"


def test_defect_34_commits_have_the_users_name_with_any_characters(shell: LocalShell, sandbox: Path) -> None:
    name = """Jo "$(touch pwned)" `id` O'Neil; \\"""
    prepare_repository(shell, project_of(sandbox, author=name, address="jo@example.org"))
    work = sandbox / "work dir"
    assert shell.git(work, "config", "user.name") == name
    assert shell.git(work, "config", "user.email") == "jo@example.org"
    assert not list(sandbox.rglob("pwned"))


def test_folder_that_cannot_be_created_is_an_error(shell: LocalShell, sandbox: Path) -> None:
    (sandbox / "work dir").write_text("a file")
    with pytest.raises(WorkspaceSetupFailed, match="the working folder") as failure:
        prepare_repository(shell, project_of(sandbox))
    assert failure.value.reason == "workspace_setup_failed"
