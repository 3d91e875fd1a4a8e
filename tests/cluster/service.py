"""The service on the machines of a cluster, installed from its wheel, as operators install and run it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.cluster.machines import Machine
from tests.cluster.transcript import Transcript
from tests.integration.earlier_code import check_out
from tests.services import processes
from tests.services.directories import REPOSITORY
from tests.waiting import eventually

UV = Path(sys.executable).with_name("uv")
# For tests only: the machines share one set of users, who may not enter the folders that contain the code.
FIXED = {"AW_OWN_USERS": "0", "AW_SANDBOX_DNS": "none"}
READY = "Agent Workspace is ready"
WORKING = "following_events"
NODE_ONLY = ("all", "web=0", "flower=0")


class Installed:
    """The package in a separate environment."""

    def __init__(self, environment: Path, transcript: Transcript) -> None:
        self._bin = environment / "bin"
        self._transcript = transcript

    def install(self, source: Path, prompt: str = "$") -> None:
        """Install the code of `source` with the versions of its lock, in place of the installed code."""
        words = ["pip", "install", "--python", str(self._bin / "python"), "--constraint", "requirements.lock", "."]
        self._transcript.run(f"{prompt} uv pip install --constraint requirements.lock .", [str(UV), *words], cwd=source)

    def run(self, machine: Machine, *words: str, into: Transcript | None = None) -> str:
        """Run `agent-workspace` on a machine in its folder; return the output."""
        return self._run(machine, "agent-workspace", words, into or self._transcript)

    def python(self, machine: Machine, *words: str) -> str:
        """Run the environment's Python on a machine in its folder; return the output."""
        return self._run(machine, "python", words, self._transcript)

    def demo(self, machine: Machine, url: str) -> str:
        """Run the demo with its scripted model on a machine; return the output."""
        words = ["-m", "deploy.demo", "--url", url, "--model-host", machine.address, "--keep", "--timeout", "600"]
        return self.python(machine, *words)

    @contextmanager
    def running(self, machine: Machine, shown: str, *words: str, until: str, text: str = "") -> Iterator[Path]:
        """Run a foreground command for the length of the block, and wait until it has logged `until`."""
        log, began = machine.folder / "output", time.monotonic()
        given = machine.folder / "input"
        given.write_text(text)
        command = [*machine.namespace.command, str(self._bin / "agent-workspace"), *words]
        # The command gets the text on its standard input, like the last command of a pipe that an operator types.
        piped = ["sh", "-c", 'cd "$0"; file=$1; shift; exec "$@" <"$file"', str(machine.folder), str(given), *command]
        running = processes.start(piped, log, environment=self._environment(machine))
        try:
            eventually(lambda: _has(running, log, until), deadline_seconds=300, interval_seconds=0.1)
            self._transcript.add(f"{machine.namespace.name}$ {shown}", log.read_text(), time.monotonic() - began)
            yield log
        finally:
            processes.stop(running, deadline_seconds=60)
            self._transcript.keep_log(machine.namespace.name, log.read_text())

    def joined(self, first: Machine, second: Machine) -> AbstractContextManager[Path]:
        """Join another machine as a node with one command, for the length of the block."""
        invitation = self.run(first, "nodes", "invite")
        shown = f"ssh first agent-workspace nodes invite | agent-workspace nodes join {second.address}"
        return self.running(second, shown, "nodes", "join", second.address, until=WORKING, text=invitation)

    def nodes(self, machine: Machine) -> dict[str, str]:
        """The statuses of all nodes."""
        rows = [row.split() for row in self.run(machine, "nodes", "list", into=Transcript()).splitlines()]
        return {row[0]: row[1] for row in rows[1:]}

    def await_node(self, machine: Machine, node: str, status: str = "READY") -> None:
        """Wait until a node has that status."""
        eventually(lambda: self.nodes(machine).get(node) == status, interval_seconds=1)

    def _run(self, machine: Machine, program: str, words: Sequence[str], into: Transcript) -> str:
        command = [*machine.namespace.command, str(self._bin / program), *words]
        shown = f"{machine.namespace.name}$ {program} {' '.join(words)}"
        return into.run(shown, command, machine.folder, self._environment(machine))

    def _environment(self, machine: Machine) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("AW_") and name != "PYTHONPATH"}
        return own | FIXED | {"AW_DOCKER_HOST": machine.engine.host}


def install(folder: Path, transcript: Transcript, prompt: str = "$", source: Path | None = None) -> Installed:
    """Build the wheel of `source`, by default this tree, and install it with the versions of the lock."""
    folder.mkdir(exist_ok=True)
    environment = folder / "environment"
    transcript.run(
        f"{prompt} python3 -m venv environment", [sys.executable, "-m", "venv", "--without-pip", str(environment)]
    )
    installed = Installed(environment, transcript)
    installed.install(source or copy_code(folder / "source"), prompt)
    return installed


def copy_code(folder: Path, commit: str = "") -> Path:
    """Copy the code of a commit, by default this tree, into a new folder; return the folder."""
    folder.mkdir()
    if commit:
        check_out(commit, folder)
    else:
        copy = 'git ls-files -z | tar --null -T - -c | tar -x -C "$0"'
        subprocess.run(["sh", "-c", copy, folder], cwd=REPOSITORY, check=True, capture_output=True)
    return folder


def write_settings(machine: Machine, settings: Sequence[str]) -> None:
    """Write a machine's var/env."""
    (machine.folder / "var").mkdir(mode=0o700)
    (machine.folder / "var" / "env").write_text("\n".join(settings) + "\n")


def _has(running: subprocess.Popen[bytes], log: Path, text: str) -> bool:
    said = log.read_text()
    assert running.poll() is None, said
    return text in said
