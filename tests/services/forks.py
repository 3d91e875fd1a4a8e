"""The service's processes without the time of imports: forked from a process that has done them.

What a process is made of is imported there, ours as well: each child reads its environment as a new process does. A
command that forks must be a package's `__main__`, or its children import it first.
"""

import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import connection, forkserver
from pathlib import Path

IMPORTED_BEFOREHAND = [
    "alembic",
    "api.app",
    "celery.apps.worker",
    "celery.concurrency.thread",
    "celery.events.dispatcher",
    "cryptography.fernet",
    "docker",
    "fastapi.staticfiles",
    "fastapi_offline",
    "h11",
    "httpx",
    "kombu.transport.redis",
    "psycopg",
    "pydantic_settings",
    "pytest",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "sqlmodel",
    "structlog",
    "uvicorn.protocols.http.httptools_impl",
    "websockets.asyncio.client",
    "websockets.asyncio.server",
    "worker.tasks",
]
PR_SET_PDEATHSIG = 1
# A child's exit status can be read only once. One thread at a time polls a child, or starts one and so polls all.
_ALONE = threading.Lock()


class Fork:
    """A running child, with as much of `subprocess.Popen` as our tests want."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Run a module as `python -m` does, with arguments, and these variables more; its words go to the log's end."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED_BEFOREHAND)
        self._process = context.Process(target=_run, args=(list(command), dict(environment), str(log)), daemon=True)
        with _ALONE:
            self._process.start()

    @property
    def pid(self) -> int:
        """Its process's number."""
        return self._process.pid or 0

    def poll(self) -> int | None:
        """How it ended; None while it runs."""
        with _ALONE:
            return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self._process.pid is not None and self.poll() is None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Let it die at once."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """How it ended, once it has.

        Raises:
            TimeoutExpired: it did not, in so many seconds.
        """
        connection.wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0)
        return code


def _run(command: list[str], environment: dict[str, str], log: str) -> None:
    os.setsid()
    # Held open by us, it would keep the server, and so us, alive beyond the tests' own process.
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir("/")
    for name in [name for name in os.environ if name.startswith("AW_")]:
        del os.environ[name]
    os.environ.update(environment)
    sys.argv = command
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)
