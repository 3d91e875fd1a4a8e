"""The real sh, bash and git of this machine, in a folder in place of a sandbox."""

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from shared.agent_server.responses import CommandResult
from tests.services.git_http import GitServer
from worker.workspace.git_remotes import GitRepository
from worker.workspace.setup import Project

CONVERSATION = UUID("0123456789abcdef0123456789abcdef")


TOKEN = "ghp_t0ken/with:odd%characters"


FAILING = "#!/bin/sh\necho no commit today >&2\nexit 1\n"


@dataclass
class LocalShell:
    """Runs commands on this machine with a home of its own, and records what an agent server would store."""

    home: Path
    commands: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)
    before_clone: Callable[[], object] = lambda: None

    def run_command(self, command: str, cwd: str | None = None, timeout: float = 30.0) -> CommandResult:
        if "clone --quiet" in command:
            self.before_clone()
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "TMPDIR": str(self.home / "tmp")}
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=cwd,
            env=environment,
            text=True,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        self.commands.append(command)
        self.outputs.append(done.stdout + done.stderr)
        self.timeouts.append(timeout)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def upload(self, path: str, content: bytes) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)

    def git(self, folder: Path, *arguments: str) -> str:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home)}
        command = ["git", *arguments]
        return subprocess.run(
            command, cwd=folder, env=environment, text=True, capture_output=True, check=True
        ).stdout.strip()


def project_of(sandbox: Path, repository: GitRepository | None = None, **more: object) -> Project:
    return Project(
        conversation_id=str(CONVERSATION),
        working_dir=str(sandbox / "work dir"),
        repository=repository,
        private_roots=(str(sandbox / "shm"),),
        **more,  # type: ignore[arg-type]
    )


def app_on(server: GitServer, **more: object) -> GitRepository:
    return GitRepository("acme/app", **{"token": TOKEN, "host": server.url, **more})  # type: ignore[arg-type]


def files_that_contain(folder: Path, text: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]
