"""Processes of the service that are forked from a process with the modules imported.

That process imports all modules, including the service's own. Each child reads its environment as a new process does. A
command that forks must be a package's `__main__`; otherwise its children import it first.
"""

import ctypes
import multiprocessing
import os
import resource
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import connection, forkserver
from pathlib import Path

IMPORTED_BEFOREHAND = ["tests.services.imported_beforehand", "pytest"]
PR_SET_PDEATHSIG = 1
CLONE_NEWNET = 0x40000000
# A child's exit status can be read only once, so one thread at a time polls a child, or starts one, which polls all.
_ALONE = threading.Lock()


class Fork:
    """A running child, with the part of `subprocess.Popen`'s interface that tests use."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        namespace: Path | None = None,
        files: tuple[int, int] | None = None,
    ) -> None:
        """Run a module with arguments, as `python -m` does, with additional variables; append its output to the log.

        Args:
            namespace: the network namespace in which it runs.
            files: its limits of open files, soft and hard.
        """
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED_BEFOREHAND)
        arguments = (list(command), dict(environment), str(log), namespace, files)
        self._process = context.Process(target=_run, args=arguments, daemon=True)
        with _ALONE:
            self._process.start()

    @property
    def pid(self) -> int:
        """The child's pid."""
        return self._process.pid or 0

    def poll(self) -> int | None:
        """The exit code; None while the child runs."""
        with _ALONE:
            return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the child has ended."""
        if self._process.pid is not None and self.poll() is None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Kill the child."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the child; return its exit code.

        Raises:
            TimeoutExpired: the child did not end in time.
        """
        connection.wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0)
        return code

    def stop(self, *, deadline_seconds: float = 20) -> None:
        """Ask the child to end and wait for that; kill it if it does not end in time."""
        self.send_signal(signal.SIGTERM)
        try:
            self.wait(deadline_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            self.wait()


def _run(
    command: list[str], environment: dict[str, str], log: str, namespace: Path | None, files: tuple[int, int] | None
) -> None:
    os.setsid()
    # If the child held this descriptor open, the fork server, and so the child, would outlive the tests' process.
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if namespace:
        _enter(namespace)
    if files:
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
    os.chdir("/")
    for name in [name for name in os.environ if name.startswith("AW_")]:
        del os.environ[name]
    os.environ.update(environment)
    sys.argv = command
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)


def _enter(namespace: Path) -> None:
    opened = os.open(namespace, os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(opened, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "the namespace can't be entered", str(namespace))
    os.close(opened)
