"""The service on the machines of a cluster, installed from its wheel, as operators install and run it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.machines import Machine
from tests.cluster.transcript import Transcript
from tests.services import processes
from tests.services.directories import REPOSITORY
from tests.waiting import eventually

UV = Path(sys.executable).with_name("uv")
# Of the tests: the machines share one set of users, who may not enter the folders of the code.
FIXED = {"AW_OWN_USERS": "0", "AW_SANDBOX_DNS": "none"}


class Installed:
    """The package in an environment of its own."""

    def __init__(self, environment: Path, transcript: Transcript) -> None:
        self._bin = environment / "bin"
        self._transcript = transcript

    def run(self, machine: Machine, *words: str, into: Transcript | None = None) -> str:
        """The output of `agent-workspace`, run on a machine in its folder."""
        return (into or self._transcript).run(
            f"{machine.namespace.name}$ agent-workspace {' '.join(words)}",
            [*machine.namespace.command, str(self._bin / "agent-workspace"), *words],
            machine.folder,
            self._environment(machine),
        )

    def demo(self, machine: Machine, url: str) -> str:
        """The output of the demo, whose scripted model is on that machine."""
        words = ["-m", "deploy.demo", "--url", url, "--model-host", machine.address, "--keep", "--timeout", "600"]
        return self._transcript.run(
            f"{machine.namespace.name}$ python {' '.join(words)}",
            [*machine.namespace.command, str(self._bin / "python"), *words],
            machine.folder,
            self._environment(machine),
        )

    @contextmanager
    def running(self, machine: Machine, shown: str, *words: str, until: str, text: str = "") -> Iterator[Path]:
        """A command that stays in the foreground, until the end of the block; `until` is what it logs when it is up."""
        log, began = machine.folder / "output", time.monotonic()
        given = machine.folder / "input"
        given.write_text(text)
        command = [*machine.namespace.command, str(self._bin / "agent-workspace"), *words]
        # The last process of a pipe, as where an operator types it.
        piped = ["sh", "-c", 'cd "$0"; file=$1; shift; exec "$@" <"$file"', str(machine.folder), str(given), *command]
        running = processes.start(piped, log, environment=self._environment(machine))
        try:
            eventually(lambda: _has(running, log, until), deadline_seconds=300, interval_seconds=0.1)
            self._transcript.add(f"{machine.namespace.name}$ {shown}", log.read_text(), time.monotonic() - began)
            yield log
        finally:
            processes.stop(running, deadline_seconds=60)
            (machine.folder / "ended").write_text(log.read_text())

    def _environment(self, machine: Machine) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("AW_") and name != "PYTHONPATH"}
        return own | FIXED | {"AW_DOCKER_HOST": machine.engine.host}


def install(folder: Path, transcript: Transcript) -> Installed:
    """Build the wheel, and install it with the versions of the lock."""
    source = folder / "source"
    source.mkdir()
    copy = 'git ls-files -z | tar --null -T - -c | tar -x -C "$0"'
    subprocess.run(["sh", "-c", copy, source], cwd=REPOSITORY, check=True, capture_output=True)
    environment = folder / "environment"
    transcript.run("$ python3 -m venv environment", [sys.executable, "-m", "venv", "--without-pip", str(environment)])
    install = [str(UV), "pip", "install", "--python", str(environment / "bin" / "python"), "--constraint"]
    transcript.run(
        "$ uv pip install --constraint requirements.lock .", [*install, "requirements.lock", "."], cwd=source
    )
    return Installed(environment, transcript)


def write_settings(machine: Machine, settings: Sequence[str]) -> None:
    """Write a machine's var/env."""
    (machine.folder / "var").mkdir(mode=0o700)
    (machine.folder / "var" / "env").write_text("\n".join(settings) + "\n")


def _has(running: subprocess.Popen[bytes], log: Path, text: str) -> bool:
    said = log.read_text()
    assert running.poll() is None, said
    return text in said
