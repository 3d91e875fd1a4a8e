"""Earlier commits from the history of the repository, and processes and commands that run the code of a tree."""

import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

from tests.services import processes
from tests.services.directories import REPOSITORY

VERSIONS = "deploy/migrations/versions"
# Runs the command line, which was in another module in an earlier layout of the code.
COMMAND_LINE = """
try:
    from shared.cli.app import main
except ImportError:
    from shared.cli import main
main()
"""


def find_earlier_commit() -> str:
    """The newest commit, from HEAD backwards, whose migrations differ from those of the working tree.

    Raises:
        RuntimeError: the history contains no such commit: the clone is shallow, or the schema never changed.
    """
    if _git("rev-parse", "--is-shallow-repository").strip() == "true":
        raise RuntimeError("this clone is shallow: fetch its full history (git fetch --unshallow)")
    now = {path.name for path in (REPOSITORY / VERSIONS).glob("*.py")}
    changed = _git("log", "--format=%H^", "--first-parent", "--", VERSIONS).split()
    for commit in ("HEAD", *changed[:-1]):  # the very first commit has no parent with migrations
        names = {Path(name).name for name in _git("ls-tree", "--name-only", commit, f"{VERSIONS}/").split()}
        if {name for name in names if name.endswith(".py")} != now:
            return _git("rev-parse", commit).strip()
    raise RuntimeError("no earlier commit has an older schema")


def find_last_release() -> str:
    """The newest tagged release; without tags, the newest earlier commit with an older schema.

    If that commit has no doors yet, it is the commit that introduced them: code from before the doors can't work beside
    today's, because its containers publish ports.
    """
    tags = _git("tag", "--merged", "HEAD^", "--sort=-creatordate", "--list", "v*").split()
    if tags:
        return _git("rev-parse", f"{tags[0]}^{{commit}}").strip()
    earlier = find_earlier_commit()
    if _git("ls-tree", "--name-only", earlier, "deploy/door").strip():
        return earlier
    return _git(
        "log", "--first-parent", "--diff-filter=A", "--format=%H", "-1", "--", "deploy/door/__main__.py"
    ).strip()


def check_out(commit: str, directory: Path) -> None:
    """Write the tree of a commit into the directory, without touching the clone."""
    packed = subprocess.run(["git", "-C", REPOSITORY, "archive", commit], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(directory, filter="data")


def start(tree: Path, module: str, log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process of that tree's code."""
    return processes.start([sys.executable, "-m", module], log, environment=_environment(tree, environment))


def run_command_line(tree: Path, *arguments: str, environment: Mapping[str, str]) -> str:
    """The output of that tree's `agent-workspace` command."""
    command = [sys.executable, "-c", COMMAND_LINE, *arguments]
    done = subprocess.run(
        command, cwd="/", env=_environment(tree, environment), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _environment(tree: Path, environment: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree), **environment}


def _git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", REPOSITORY, *arguments], capture_output=True, text=True, check=True).stdout
